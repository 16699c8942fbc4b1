package subject

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/kernelcc"
)

var (
	// validName matches names that fit into a table and into the name of a file.
	validName = regexp.MustCompile(`^[\w][\w .+=/()-]{0,39}$`)
	// validCC is what TCP_CA_NAME_MAX (include/net/tcp.h) allows, in the letters that
	// congestion controls use.
	validCC = regexp.MustCompile(`^[a-z0-9_]{1,15}$`)
)

// maxWindow is the maximum of an initial window in packets. With packets of 64 KB it fills
// a 32-bit window, so a larger number was meant in another unit.
const maxWindow = 65535

// Check finds mistakes that do not depend on the machine.
func (s Spec) Check() error {
	if !validName.MatchString(s.Name) {
		return fmt.Errorf("check subject %q: a name has 1 to 40 letters, digits, spaces and any of _.+-=/()", s.Name)
	}
	if err := errors.Join(s.checkKind(), s.checkCC(), s.checkOthers()); err != nil {
		return fmt.Errorf("check subject %s: %w", s.Name, err)
	}
	return nil
}

// checkKind checks that what the kind needs is set.
func (s Spec) checkKind() error {
	switch s.Kind {
	case Default, Bpftune:
	case Fixed:
		if s.CC == "" {
			return errors.New("it needs cc, the congestion control")
		}
	case Route:
		if s.InitCwnd == 0 && s.InitRwnd == 0 {
			return errors.New("it needs initcwnd or initrwnd")
		}
		for _, n := range []int{s.InitCwnd, s.InitRwnd} {
			if n < 0 || n > maxWindow {
				return fmt.Errorf("an initial window of %d: it is 1 to %d packets", n, maxWindow)
			}
		}
	case Tcpilot:
		return checkConfig(s.Config)
	case Command:
		if strings.TrimSpace(s.Begin) == "" {
			return errors.New("it needs begin, a command")
		}
	case Pods:
		return s.checkPods()
	default:
		return fmt.Errorf("kind %q: it is one of %s, %s, %s, %s, %s, %s and %s", s.Kind, Default, Fixed, Route, Tcpilot, Bpftune, Command, Pods)
	}
	return nil
}

func (s Spec) checkCC() error {
	if s.CC == "" {
		return nil
	}
	if !validCC.MatchString(s.CC) {
		return fmt.Errorf("%q is no name of a congestion control", s.CC)
	}
	if s.Kind == Default {
		return fmt.Errorf("the default has no cc: use kind %s", Fixed)
	}
	return nil
}

// checkOthers finds settings of other kinds, which would have no effect.
func (s Spec) checkOthers() error {
	var errs []error
	for _, f := range []struct {
		name string
		set  bool
		of   []Kind
	}{
		{"initcwnd", s.InitCwnd != 0, []Kind{Route}},
		{"initrwnd", s.InitRwnd != 0, []Kind{Route}},
		{"config", s.Config != "", []Kind{Tcpilot, Pods}},
		{"begin", s.Begin != "", []Kind{Command}},
		{"end", s.End != "", []Kind{Command}},
		{"join", s.Join != "", []Kind{Pods}},
		{"cni", len(s.Plugins) > 0, []Kind{Pods}},
		{"annotations", len(s.Annotations) > 0, []Kind{Pods}},
	} {
		if f.set && !slices.Contains(f.of, s.Kind) {
			errs = append(errs, fmt.Errorf("%s is for kind %s", f.name, f.of[0]))
		}
	}
	return errors.Join(errs...)
}

// String describes the subject; for the default, it names the congestion control.
func (s Spec) String() string {
	text := s.what()
	if s.CC != "" && s.Kind != Fixed {
		text += ", beginning with " + s.CC
	}
	return text
}

func (s Spec) what() string {
	switch s.Kind {
	case Default:
		cc, err := kernelcc.Default()
		if err != nil {
			return "default"
		}
		return "default (" + cc + ")"
	case Fixed:
		return s.CC
	case Route:
		var parts []string
		if s.InitCwnd != 0 {
			parts = append(parts, fmt.Sprintf("initcwnd %d", s.InitCwnd))
		}
		if s.InitRwnd != 0 {
			parts = append(parts, fmt.Sprintf("initrwnd %d", s.InitRwnd))
		}
		return "ip route " + strings.Join(parts, " ")
	case Tcpilot:
		if s.Config == "" {
			return "tcpilot"
		}
		return "tcpilot, configured"
	case Pods:
		return s.whatPods()
	case Command:
		line, more, _ := strings.Cut(strings.TrimSpace(s.Begin), "\n")
		if more != "" {
			line += " ..."
		}
		return "`" + line + "`"
	}
	return string(s.Kind)
}
