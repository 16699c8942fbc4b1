package experiment

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/subject"
)

// subjectList has the subjects of a case that can run here, in the scenario's order.
type subjectList []subject.Subject

// newSubjects makes the chosen subjects of a case. It lists all subjects in the description
// of the case, with the reason if one does not run.
func (n *network) newSubjects(j job, o Options, about *report.Case) (list subjectList, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, list.close())
		}
	}()
	w := subject.World{Net: n.net, Layout: n.layout, Cgroups: n.cgroups, Binary: o.Binary, CC: j.DefaultCC(),
		Default: j.CC, Fresh: j.Fresh}
	for _, name := range j.Tuned {
		h, err := n.layout.Host(name)
		if err != nil {
			return nil, err
		}
		w.Tuned = append(w.Tuned, h)
	}
	for _, t := range j.Traffic {
		w.Others = append(w.Others, t.CC)
	}
	for _, s := range j.Subjects {
		entry := report.Subject{Name: s.Name}
		if s.Kind == subject.Fixed {
			entry.Fixed = s.CC
		}
		if s.Kind == subject.Default {
			entry.Fixed = j.CC // only if the experiment sets it: not the machine's default
		}
		if !o.chooses(j, s) {
			entry.Skipped = report.NotChosen
			about.Subjects = append(about.Subjects, entry)
			continue
		}
		made, err := subject.New(s, w)
		switch {
		case errors.Is(err, subject.ErrUnavailable):
			entry.Skipped = err.Error()
		case err != nil:
			return list, err
		default:
			list = append(list, made)
			if entry.Learns = made.Learns(); entry.Learns {
				entry.Warmup = j.Warmup
			}
		}
		about.Subjects = append(about.Subjects, entry)
	}
	return list, nil
}

// close removes the state that subjects keep between rounds.
func (list subjectList) close() error {
	var errs []error
	for _, s := range slices.Backward(list) {
		if err := s.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", s.Name(), err))
		}
	}
	return errors.Join(errs...)
}
