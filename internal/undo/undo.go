package undo

import (
	"errors"
	"fmt"
)

// Stack holds steps; the zero value is empty. Not safe for concurrent use.
type Stack struct{ steps []step }

type step struct {
	what string
	do   func() error
}

// Push adds a step. what is the prefix of its error ("release lock"); it may be empty if the
// error already says it.
func (s *Stack) Push(what string, do func() error) { s.steps = append(s.steps, step{what, do}) }

// Run executes and removes all steps, the last one first; it continues after an error. Its
// error joins those of the steps.
func (s *Stack) Run() error {
	var errs []error
	for len(s.steps) > 0 {
		last := s.steps[len(s.steps)-1]
		s.steps = s.steps[:len(s.steps)-1]
		err := last.do()
		if err != nil && last.what != "" {
			err = fmt.Errorf("%s: %w", last.what, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
