package testenv

import (
	"slices"
	"testing"
	"time"
)

func TestTableCountsWhatHeld(t *testing.T) {
	var rows []string
	m := &Measurement{print: func(row string) { rows = append(rows, row) }}
	for n := 1; n <= 3; n++ {
		AtLeast(m, "ratio", 0.5*float64(n), 1)
		AtMost(m, "lost", n, 1)
		Between(m, "delay", time.Duration(n)*time.Millisecond, 2*time.Millisecond, 3*time.Millisecond)
		m.Holds("first", "cubic", n == 2, "not cubic")
	}
	m.table()
	want := []string{
		"ratio\tat least 1\t2 of 3\t0.5 1 1.5",
		"lost\tat most 1\t1 of 3\t1 2 3",
		"delay\t2ms to 3ms\t2 of 3\t1ms 2ms 3ms",
		"first\tcubic\t1 of 3\tnotcubic notcubic notcubic",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the table is\n%q, want\n%q", rows, want)
	}
}

// Without the variable nothing is measured. With it, a comparison that does not hold does not
// fail the test.
func TestMeasuresOnlyIfEnabled(t *testing.T) {
	ran := 0
	measure := func(t *testing.T) {
		Measure(t, func(_ *testing.T, m *Measurement) { ran++; AtLeast(m, "one", 1, 2) })
	}
	t.Setenv(roundsVar, "")
	t.Run("skipped", measure)
	if ran != 0 {
		t.Errorf("%d rounds without being asked", ran)
	}
	t.Setenv(roundsVar, "2")
	if ok := t.Run("asked for", measure); !ok || ran != 2 {
		t.Errorf("ok %t after %d rounds, want 2", ok, ran)
	}
}
