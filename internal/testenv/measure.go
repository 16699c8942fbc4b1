package testenv

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// roundsVar is the environment variable that enables measurements: the number of rounds
// of each. make measure sets it.
const roundsVar = "TCPILOT_MEASURE"

// Measurement is a set of comparisons that are repeated. Their results depend on the load of the
// machine, so they never fail a test.
type Measurement struct {
	rows  []*comparison
	print func(row string)
}

// comparison is one row of the table.
type comparison struct {
	what    string
	want    string
	figures []string
	passed  int
}

// Measure runs the comparisons for roundsVar rounds and prints the results: one row for
// each comparison. A test that calls it is named TestMeasure..., and is skipped unless
// measurements are enabled. A check whose result does not depend on the machine belongs in a
// test.
//
// Each round is a subtest that undoes its changes.
func Measure(t *testing.T, round func(t *testing.T, m *Measurement)) {
	t.Helper()
	rounds, _ := strconv.Atoi(os.Getenv(roundsVar))
	if rounds < 1 {
		t.Skip("a measurement: make measure")
	}
	m := &Measurement{print: func(row string) { fmt.Println("measure:" + t.Name() + "\t" + row) }}
	for n := range rounds {
		t.Run(strconv.Itoa(n+1), func(t *testing.T) { round(t, m) })
	}
	m.table()
}

func (m *Measurement) table() {
	for _, c := range m.rows {
		m.print(fmt.Sprintf("%s\t%s\t%d of %d\t%s", c.what, c.want, c.passed, len(c.figures), strings.Join(c.figures, " ")))
	}
}

// Holds records whether a comparison held in this round, with the wanted and the measured
// figure.
func (m *Measurement) Holds(what, want string, passed bool, figure string) {
	var c *comparison
	for _, row := range m.rows {
		if row.what == what {
			c = row
		}
	}
	if c == nil {
		c = &comparison{what: what, want: want}
		m.rows = append(m.rows, c)
	}
	c.figures = append(c.figures, strings.ReplaceAll(figure, " ", ""))
	if passed {
		c.passed++
	}
}

// number is a measured figure: a count, ratio or duration.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// AtLeast compares a figure with its lower limit.
func AtLeast[T number](m *Measurement, what string, got, least T) {
	m.Holds(what, "at least "+figure(least), got >= least, figure(got))
}

// AtMost compares a figure with its upper limit.
func AtMost[T number](m *Measurement, what string, got, most T) {
	m.Holds(what, "at most "+figure(most), got <= most, figure(got))
}

// Between compares a figure with a range.
func Between[T number](m *Measurement, what string, got, low, high T) {
	m.Holds(what, figure(low)+" to "+figure(high), got >= low && got <= high, figure(got))
}

func figure[T number](v T) string {
	if f, ok := any(v).(float64); ok {
		return strconv.FormatFloat(f, 'g', 3, 64)
	}
	return fmt.Sprint(v)
}
