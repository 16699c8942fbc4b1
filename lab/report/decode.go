package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// decoder builds a report line by line.
type decoder struct {
	report Report
	cases  map[[2]string]*openCase
	line   []byte
	// names has each name once, so that tens of thousands of connections share the strings.
	names map[string]string
}

// openCase is a case with rounds still to be read, by their order.
type openCase struct {
	*CaseRounds
	rounds map[int]*openRound
}

type openRound struct {
	RoundData
	whole bool // its own line, the last, was read
}

func (d *decoder) record(line []byte, n int) error {
	if n == 1 {
		if err := checkVersion(line); err != nil {
			return err
		}
	}
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	if err := r.check(n); err != nil {
		return err
	}
	switch {
	case d.report.End != nil:
		return fmt.Errorf("a record of type %q after the end record", r.Type)
	case r.Run != nil:
		d.report.Run = *r.Run
	case r.Case != nil:
		return d.addCase(r.Case)
	case r.Round != nil:
		return d.addRound(r.Round)
	case r.Data != nil:
		return d.addData(r.Data)
	case r.End != nil:
		d.report.End = r.End
	}
	return nil
}

// checkVersion reads only those parts of the first line that all versions have.
func checkVersion(line []byte) error {
	var first struct {
		Type string
		Run  struct{ Version int }
	}
	switch err := json.Unmarshal(line, &first); {
	case err != nil || first.Type != "run" || first.Run.Version < 1:
		return errors.New("this is not a report of the lab")
	case first.Run.Version != version:
		return fmt.Errorf("the report is of version %d, and this tcpilot reads version %d", first.Run.Version, version)
	}
	return nil
}

// check makes sure that the record is what its type says.
func (r *record) check(n int) error {
	if r.Type == "run" && n > 1 {
		return errors.New("a second run record: a report is of one run")
	}
	has := map[string]bool{"run": r.Run != nil, "case": r.Case != nil, "round": r.Round != nil, "end": r.End != nil}
	if r.Data != nil {
		has["connection"], has["request"], has["point"] = r.Data.Connection != nil, r.Data.Request != nil, r.Data.Point != nil
	}
	parts := 0
	for _, there := range has {
		if there {
			parts++
		}
	}
	if !has[r.Type] || parts != 1 {
		return fmt.Errorf("the contents do not match the record type %q", r.Type)
	}
	return nil
}

func (d *decoder) addCase(c *Case) error {
	key := [2]string{c.Scenario, c.Case}
	if d.cases[key] != nil {
		return fmt.Errorf("case %s occurs twice", c.FullName())
	}
	opened := &openCase{&CaseRounds{Case: *c}, make(map[int]*openRound)}
	d.cases[key] = opened
	d.report.Cases = append(d.report.Cases, opened.CaseRounds)
	return nil
}

// round returns the round of a case, which must be known.
func (d *decoder) round(scenario, name string, order int) (*openCase, *openRound, error) {
	c := d.cases[[2]string{scenario, name}]
	if c == nil {
		return nil, nil, fmt.Errorf("unknown case %s", fullName(scenario, name))
	}
	if c.rounds[order] == nil {
		c.rounds[order] = &openRound{}
	}
	return c, c.rounds[order], nil
}

func (d *decoder) addRound(r *Round) error {
	c, round, err := d.round(r.Scenario, r.Case, r.Order)
	if err != nil {
		return err
	}
	if round.whole {
		return fmt.Errorf("round %d of case %s occurs twice", r.Order, c.FullName())
	}
	if err := sane(r.Metrics); err != nil {
		return err
	}
	for _, metrics := range r.Groups {
		if err := sane(metrics); err != nil {
			return err
		}
	}
	round.Round, round.whole = *r, true
	c.Rounds = append(c.Rounds, &round.RoundData)
	return nil
}

// sane refuses values that no traffic can have and that would overflow in computations.
func sane(metrics map[string]float64) error {
	for name, v := range metrics {
		if math.Abs(v) > 1e30 {
			return fmt.Errorf("metric %s cannot be %g", name, v)
		}
	}
	return nil
}

func (d *decoder) addData(data *data) error {
	_, round, err := d.round(data.Scenario, data.Case, data.Order)
	if err != nil {
		return err
	}
	switch {
	case data.Connection != nil:
		c := data.Connection
		d.intern(&c.Group, &c.From, &c.To, &c.CC, &c.CCEnd)
		round.Connections = append(round.Connections, *c)
	case data.Request != nil:
		d.intern(&data.Request.Group)
		round.Requests = append(round.Requests, *data.Request)
	case data.Point != nil:
		d.intern(&data.Point.CC)
		round.Points = append(round.Points, *data.Point)
	}
	return nil
}

func (d *decoder) intern(names ...*string) {
	for _, w := range names {
		if known, ok := d.names[*w]; ok {
			*w = known
		} else {
			d.names[*w] = *w
		}
	}
}

// finish reports what is missing. Data without the line of their round are of a round that
// was cut off, which is valid only at the end of a file.
func (d *decoder) finish(lines int) (*Report, error) {
	if lines == 0 {
		return nil, errors.New("the report is empty")
	}
	torn := 0
	for _, c := range d.cases {
		for _, r := range c.rounds {
			if !r.whole {
				torn++
			}
		}
	}
	if d.report.End == nil {
		d.report.Truncated += "the run did not end"
		if torn > 0 {
			d.report.Truncated += "; its last round is incomplete and was left out"
		}
	} else if torn > 0 || d.report.Truncated != "" {
		return nil, errors.New("the report has an end record, but one of its rounds or lines is incomplete")
	}
	return &d.report, nil
}
