package testenv

import (
	"errors"
	"testing"
)

// Again measures until twice nothing was wrong, or three times something, and fails the
// test then: a machine that others share stands still now and then. Each time must
// measure anew.
func Again(t testing.TB, measure func() error) {
	t.Helper()
	var right int
	var wrong []error
	for right < 2 && len(wrong) < 3 {
		if err := measure(); err != nil {
			wrong = append(wrong, err)
		} else {
			right++
		}
	}
	if err := errors.Join(wrong...); right < 2 {
		t.Error(err)
	} else if err != nil {
		t.Logf("twice right, but also: %v", err)
	}
}

// OnceMore gives a measurement that was wrong a second chance, and no more: for what
// takes too long to be measured twice where it was right.
func OnceMore(t testing.TB, measure func() error) {
	t.Helper()
	first := measure()
	if first == nil {
		return
	}
	t.Logf("a second time, since the first was wrong: %v", first)
	if err := measure(); err != nil {
		t.Error(errors.Join(first, err))
	}
}
