package daemon

import (
	"errors"
	"fmt"
)

// undoStack holds what is to be undone, last first.
type undoStack struct{ steps []undoStep }

type undoStep struct {
	what string
	do   func() error
}

func (u *undoStack) push(what string, do func() error) { u.steps = append(u.steps, undoStep{what, do}) }

func (u *undoStack) run() error {
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i].do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", u.steps[i].what, err))
		}
	}
	u.steps = nil
	return errors.Join(errs...)
}
