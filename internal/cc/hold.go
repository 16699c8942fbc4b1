package cc

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Hold registers one of ours for experiments and tests, until release or the end
// of the process: it is pinned nowhere. One that is registered already, as by a
// daemon, is used, and release leaves it. Nothing says then that its version is the
// one that this process has: who must know has List's Elsewhere to go by, before.
// Of several processes that hold the same one the first should release it last.
func Hold(name string) (release func() error, err error) {
	o := find(embedded(), name)
	if o == nil {
		return nil, fmt.Errorf("hold congestion control %q: none of ours has this name: %w", name, fs.ErrNotExist)
	}
	return o.hold()
}

func (o object) hold() (release func() error, err error) {
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
