package daemon

import (
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// sysctlCC gives the kernel's default congestion control.
const sysctlCC = "net.ipv4.tcp_congestion_control"

// sysctls watches the settings that give the kernel's defaults for what tcpilot
// sets. When somebody changes one while tcpilot runs, its field is theirs.
type sysctls struct {
	watch    *host.SysctlWatch
	defaults map[string]engine.Default
}

func newSysctls() *sysctls {
	s := &sysctls{defaults: map[string]engine.Default{sysctlCC: {CC: true}}}
	names := []string{sysctlCC}
	for f := range tcp.NumFields {
		if name := tcp.Fields[f].Sysctl; name != "" {
			names = append(names, name)
			s.defaults[name] = engine.Default{Field: f}
		}
	}
	s.watch = host.NewSysctlWatch(host.ProcSys, names)
	return s
}

// poll yields what was changed since the last call, and reports whether anything
// is yielded that was not.
func (s *sysctls) poll(e *engine.Engine) (yielded bool) {
	for _, c := range s.watch.Poll() {
		y := engine.Yield{Sysctl: c.Name, Before: c.Before, After: c.After, Since: time.Now()}
		if e.SetYield(y, s.defaults[c.Name]) {
			yielded = true
		}
	}
	return yielded
}
