package undo

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestRunGoesBackwardsAndContinuesAfterErrors(t *testing.T) {
	var got []string
	var u Stack
	u.Push("first", func() error { got = append(got, "first"); return nil })
	u.Push("second", func() error { got = append(got, "second"); return os.ErrClosed })
	err := u.Run()
	if strings.Join(got, " ") != "second first" || !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), "second") {
		t.Errorf("%v, %v", got, err)
	}
	if u.Run() != nil || len(got) != 2 {
		t.Error("undone twice")
	}
}
