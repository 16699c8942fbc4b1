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
	watch  *host.SysctlWatch
	fields map[string]tcp.Field
}

func newSysctls() *sysctls {
	s := &sysctls{fields: map[string]tcp.Field{}}
	names := []string{sysctlCC}
	for f := range tcp.NumFields {
		if name := tcp.Fields[f].Sysctl; name != "" {
			names = append(names, name)
			s.fields[name] = f
		}
	}
	s.watch = host.NewSysctlWatch(host.ProcSys, names)
	return s
}

// poll yields what was changed since the last call, and reports whether anything was.
func (s *sysctls) poll(e *engine.Engine) bool {
	changes := s.watch.Poll()
	for _, c := range changes {
		y := engine.Yield{Field: "cc", Sysctl: c.Name, Before: c.Before, After: c.After, Since: time.Now()}
		f, isField := s.fields[c.Name]
		if isField {
			y.Field = f.String()
		}
		e.SetYield(y, f, !isField)
	}
	return len(changes) > 0
}
