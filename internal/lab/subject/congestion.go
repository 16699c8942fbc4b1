package subject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"golang.org/x/sys/unix"
)

const (
	congestionKey  = "net.ipv4.tcp_congestion_control"
	availableFile  = "/proc/sys/net/ipv4/tcp_available_congestion_control"
	congestionFile = "/proc/sys/net/ipv4/tcp_congestion_control"
)

// KnownControls are the congestion controls of Linux's net/ipv4, all of which may
// be modules, and bbr3 and prague, which some kernels are patched with.
var KnownControls = []string{"bbr", "bbr3", "bic", "cdg", "cubic", "dctcp", "highspeed", "htcp", "hybla", "illinois",
	"lp", "nv", "prague", "reno", "scalable", "vegas", "veno", "westwood", "yeah"}

// Controls lists the congestion controls that this kernel has, the modules of
// the known ones included, which it loads.
func Controls() ([]string, error) {
	for _, cc := range KnownControls {
		if err := tryCongestion(cc); err != nil && !errors.Is(err, ErrUnavailable) {
			return nil, err
		}
	}
	names, err := os.ReadFile(availableFile)
	if err != nil {
		return nil, fmt.Errorf("list congestion controls: %w", err)
	}
	list := strings.Fields(string(names))
	slices.Sort(list)
	return list, nil
}

// tryCongestion sets a congestion control on a socket that is never connected,
// for which the kernel loads the module if there is one.
func tryCongestion(cc string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("try congestion control %s: %w", cc, err)
	}
	defer unix.Close(fd)
	err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, cc)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("congestion control %s: %w: the kernel has none of this name", cc, ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("try congestion control %s: %w", cc, err)
	}
	return nil
}

// machineCongestion is the default of this host's kernel, outside of the lab.
func machineCongestion() (string, error) {
	cc, err := os.ReadFile(congestionFile)
	if err != nil {
		return "", fmt.Errorf("read default congestion control: %w", err)
	}
	return strings.TrimSpace(string(cc)), nil
}

// setCongestion gives all hosts the default congestion control that they begin
// with.
func (s *subject) setCongestion() error {
	own, err := machineCongestion()
	if err != nil {
		return err
	}
	common := s.world.CC
	if common == "" {
		common = own
	}
	tuned := common
	switch {
	case s.spec.CC != "":
		tuned = s.spec.CC
	case s.spec.Kind == Default:
		tuned = own
	}
	for _, h := range s.hosts() {
		cc := common
		if slices.Contains(s.world.Tuned, h) {
			cc = tuned
		}
		before, err := h.Sysctl(congestionKey)
		if err != nil {
			return err
		}
		// Also where it is right already: a tuner may change it.
		s.undo.push(func() error { return h.SetCongestion(before) })
		if err := h.SetCongestion(cc); err != nil {
			return err
		}
	}
	return nil
}

// hosts are all of the layout and the tuned ones.
func (s *subject) hosts() []*topology.Host {
	all := slices.Clone(s.world.Tuned)
	if s.world.Layout == nil {
		return all
	}
	for _, h := range s.world.Layout.Hosts {
		if !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return all
}
