package console

import "testing"

func TestAmount(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{
		{0, "0 B"}, {25, "25 B"}, {999, "999 B"}, {999.6, "1 kB"}, {1500, "1.5 kB"}, {625_000, "625 kB"}, {999_600, "1 MB"},
		{1e6, "1 MB"}, {12_345_678, "12.3 MB"}, {2e9, "2 GB"}, {3.2e12, "3.2 TB"}, {4e15, "4000 TB"},
	} {
		if got := amount(c.v, "B"); got != c.want {
			t.Errorf("%v: %q, want %q", c.v, got, c.want)
		}
	}
	if got := BitRate(1.5e6); got != "1.5 Mbit/s" {
		t.Errorf("1.5e6: %q", got)
	}
}

func TestPercent(t *testing.T) {
	for share, want := range map[float64]string{0: "0 %", 0.0025: "0.25 %", 0.12345: "12.3 %", 1: "100 %"} {
		if got := Percent(share); got != want {
			t.Errorf("%v: %q, want %q", share, got, want)
		}
	}
}
