package subject

import (
	"context"
	"fmt"

	"github.com/tcpilot/tcpilot/internal/undo"
	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// route sets initial windows on every route of the main table, of both families, so that
// they apply to all destinations.
type route struct {
	none
	spec  Spec
	hosts []*topology.Host
}

func (r *route) begin(_ context.Context, u *undo.Stack) error {
	for _, h := range r.hosts {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if err := r.set(h, family, u); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *route) set(h *topology.Host, family int, u *undo.Stack) error {
	routes, err := h.Netlink().RouteList(nil, family)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", h.Name, err)
	}
	for _, before := range routes {
		if before.Type != unix.RTN_UNICAST {
			continue
		}
		after := before
		if r.spec.InitCwnd != 0 {
			after.InitCwnd = r.spec.InitCwnd
		}
		if r.spec.InitRwnd != 0 {
			after.InitRwnd = r.spec.InitRwnd
		}
		if err := h.Netlink().RouteReplace(&after); err != nil {
			return fmt.Errorf("change route %s of %s: %w", before.Dst, h.Name, err)
		}
		u.Push("", func() error {
			if err := h.Netlink().RouteReplace(&before); err != nil {
				return fmt.Errorf("restore route %s of %s: %w", before.Dst, h.Name, err)
			}
			return nil
		})
	}
	return nil
}
