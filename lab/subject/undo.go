package subject

import "errors"

// undo is what has to be undone, the last first.
type undo []func() error

func (u *undo) push(f func() error) { *u = append(*u, f) }

// run undoes all of it, whatever fails, and forgets it.
func (u *undo) run() error {
	var errs []error
	for i := len(*u) - 1; i >= 0; i-- {
		errs = append(errs, (*u)[i]())
	}
	*u = nil
	return errors.Join(errs...)
}
