package experiment

import (
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/lab/report"
)

// Machine returns the part of a report's first line that describes this machine; unknown
// fields are empty.
func Machine() report.Run {
	r := report.Run{Began: time.Now(), CPUs: runtime.NumCPU(), CPU: model()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		r.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return r
}

// model is the model name of the first processor.
func model() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, " \t:"))
		}
	}
	return ""
}
