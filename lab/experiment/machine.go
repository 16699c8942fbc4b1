package experiment

import (
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/lab/report"
)

// Machine is the part of a report's first line that tells of this machine; what
// cannot be found out is empty.
func Machine() report.Run {
	r := report.Run{Began: time.Now(), CPUs: runtime.NumCPU(), CPU: model()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		r.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return r
}

// model is the name that the first processor gives itself.
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
