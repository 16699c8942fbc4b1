package cc

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Hold registers one of tcpilot's own for experiments and tests, until release or the end
// of the process: it is pinned nowhere, so the kernel drops it if the process is killed.
// If the control is already registered, for example by a daemon, that registration is used, and
// release leaves it. Its version may then differ from the one of this process: a caller
// that must know checks List for Elsewhere before. If several processes hold the same
// control, the first should release it last.
func Hold(name string) (release func() error, err error) {
	o := find(embedded(), name)
	if o == nil {
		return nil, fmt.Errorf("hold congestion control %q: tcpilot has none of this name: %w", name, fs.ErrNotExist)
	}
	return o.hold()
}

func (o Control) hold() (release func() error, err error) {
	leave := func() error { return nil }
	if there, err := isRegistered(o.name()); err == nil && there {
		return leave, nil
	}
	ops, err := o.load(o.name())
	if err != nil {
		return nil, fmt.Errorf("hold congestion control %s: %w", o.name(), err)
	}
	l, err := attach(ops)
	if errors.Is(err, unix.EEXIST) {
		return leave, ops.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hold congestion control %s: %w", o.name(), err), ops.Close())
	}
	return func() error { return errors.Join(l.Close(), ops.Close()) }, nil
}
