package subject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// linuxControls are the congestion controls of Linux, all of which may be modules, and bbr3
// and prague, which some patched kernels have.
var linuxControls = slices.Sorted(slices.Values(append(names(congestion.Linux()), "bbr3", "prague")))

// knownControls are those of Linux and tcpilot's own.
var knownControls = slices.Concat(linuxControls, ownControls())

// Controls lists the congestion controls that this kernel has. It loads the modules of the
// known ones.
func Controls() ([]string, error) {
	for _, name := range linuxControls {
		if err := tryModule(name); err != nil && !errors.Is(err, ErrUnavailable) {
			return nil, err
		}
	}
	list, err := kernelcc.Available()
	slices.Sort(list)
	return list, err
}

func ownControls() []string { return names(congestion.Own()) }

func names(list []congestion.Control) (names []string) {
	for i := range list {
		names = append(names, list[i].CC.String())
	}
	return names
}

func isOurs(name string) bool { return slices.Contains(ownControls(), name) }

// tryCongestion checks that this kernel has a congestion control. One of tcpilot's own is
// loaded and released again.
func (w *World) tryCongestion(name string) error {
	if !isOurs(name) {
		return tryModule(name)
	}
	release, err := w.hold(context.Background(), name)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return release()
}

// hold has tcpilot load one of its own congestion controls into the kernel, until release.
func (w *World) hold(ctx context.Context, name string) (release func() error, err error) {
	if len(w.Tuned) == 0 {
		return nil, errNoHost
	}
	p := &process{name: "tcpilot cc hold " + name, log: &tail{}, patience: patience}
	if err := p.start(w.Tuned[0], nil, exec.Command(w.Binary, "cc", "hold", name)); err != nil {
		return nil, err
	}
	err = p.ready(ctx, func() error {
		if !strings.HasPrefix(p.log.String(), "holding ") {
			return errors.New("it is not loaded yet")
		}
		return nil
	})
	if err != nil {
		if p.lost() == nil {
			err = errors.Join(err, p.end())
		}
		return nil, err
	}
	return p.end, nil
}

// tryModule checks that this kernel has a congestion control, and loads its module.
func tryModule(name string) error {
	err := kernelcc.Try(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// setCongestion sets the default congestion control with which each host begins.
func (s *subject) setCongestion(ctx context.Context) error {
	own, err := kernelcc.Default()
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
	case s.spec.Kind == Default && s.world.Default != "":
		tuned = s.world.Default
	case s.spec.Kind == Default:
		tuned = own
	}
	for _, name := range append([]string{tuned}, s.world.Others...) {
		if !isOurs(name) {
			continue
		}
		release, err := s.world.hold(ctx, name)
		if err != nil {
			return err
		}
		s.undo.Push("", release)
	}
	for _, h := range s.hosts() {
		name := common
		if slices.Contains(s.world.Tuned, h) {
			name = tuned
		}
		before, err := h.Sysctl(kernelcc.DefaultKey)
		if err != nil {
			return err
		}
		// Also if the value is right already, because a tuner may change it.
		s.undo.Push("", func() error { return h.SetCongestion(before) })
		if err := h.SetCongestion(name); err != nil {
			return err
		}
	}
	return nil
}

// hosts returns all hosts of the layout and the tuned ones.
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
