package yamlfile

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"repeat", "rate", "cpu_bound", "rtt"}
	for in, want := range map[string]string{
		"repeats": "repeat", "REPEAT": "repeat", "reapet": "repeat", "cpu-bound": "cpu_bound", "cpubound": "cpu_bound",
		"rtts": "rtt", "": "", "speed": "", strings.Repeat("r", 1000): "",
	} {
		if got := Nearest(in, names); got != want {
			t.Errorf("%.20q: got %q, want %q", in, got, want)
		}
	}
}
