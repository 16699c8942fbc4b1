package cc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/regular"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// maxObject limits the size of a user's object, in bytes. tcpilot's own have less than 110 KB.
const maxObject = 16 << 20

// LoadUser checks the congestion control in an object file, tests it in a network
// namespace of its own, and registers it as name. This takes seconds; it stops when ctx
// ends. With auto the control is available to all rules, not only to those that name it.
// If the same object is already registered, only auto is changed; another object of the
// same name is replaced in place, as by Load.
func (c *Catalogue) LoadUser(ctx context.Context, name, file string, auto bool) error {
	c.testing.Lock()
	defer c.testing.Unlock()
	o, err := readUser(name, file)
	if err == nil {
		o.ByName = !auto
		err = c.admit(ctx, o)
	}
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if err = ctx.Err(); err == nil { // Close may have been called
			err = c.ensure(o)
		}
	}
	if err != nil {
		return fmt.Errorf("load congestion control %s of %s: %w", name, file, err)
	}
	return nil
}

// admit tests o, unless this version is registered: then it passed the test before.
func (c *Catalogue) admit(ctx context.Context, o Control) error {
	c.mu.Lock()
	r := c.registered[o.name()]
	here := r != nil && r.Version == o.Version
	c.mu.Unlock()
	if here {
		return nil
	}
	if r == nil { // otherwise the name is already this catalogue's
		if err := nameIsFree(o.name()); err != nil {
			return err
		}
	}
	return o.tryOut(ctx, c.log)
}

func readUser(name, file string) (Control, error) {
	if err := validName(name); err != nil {
		return Control{}, err
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return Control{}, err
	}
	elf, err := regular.Read(path, maxObject)
	if err != nil {
		return Control{}, err
	}
	facts := congestion.Control{CC: tcp.CCOf(name)}
	o := Control{Control: facts, Source: path, User: true, Version: version(elf), elf: elf}
	err = o.check()
	return o, err
}

// check checks the object without loading it.
func (o *Control) check() error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	ops, err := opsMap(spec)
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for name, p := range spec.Programs {
		if p.Type != ebpf.StructOps {
			return fmt.Errorf("program %s (section %q) is of type %s: want only programs of the congestion control", name, p.SectionName, p.Type)
		}
		if !gplCompatible(p.License) {
			return fmt.Errorf("its license %q is not compatible with the GPL, as the kernel functions that it calls require", p.License)
		}
		if member, ok := strings.CutPrefix(p.AttachTo, opsType+":"); ok {
			has[member] = true
		}
	}
	for _, want := range []string{"ssthresh", "undo_cwnd"} {
		if !has[want] {
			return fmt.Errorf("it has no %s, which the kernel requires", want)
		}
	}
	if !has["cong_avoid"] && !has["cong_control"] {
		return errors.New("it has neither cong_avoid nor cong_control: the kernel requires one of them")
	}
	o.NeedsECN = needsECN(ops)
	return nil
}

// needsECN reads the control's flags; an object that sets no flags has none.
func needsECN(ops *ebpf.MapSpec) bool {
	flags, err := member(ops, "flags")
	return err == nil && len(flags) > 0 && flags[0]&flagNeedsECN != 0
}

// gplCompatible is license_is_gpl_compatible of the kernel (include/linux/license.h).
func gplCompatible(license string) bool {
	return slices.Contains([]string{"GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"}, license)
}

func validName(name string) error {
	if !userName.MatchString(name) {
		return fmt.Errorf("name %q: want 1 to 15 letters, digits or underscores", name)
	}
	if strings.HasPrefix(name, congestion.Prefix) {
		return fmt.Errorf("name %q: names that begin with %s are reserved for tcpilot", name, congestion.Prefix)
	}
	if congestion.Of(tcp.CCOf(name)).InLinux || name == "default" {
		return fmt.Errorf("name %q: it is the name of one of the kernel's own", name)
	}
	return nil
}

func isRegistered(name string) (bool, error) {
	names, err := kernelcc.Available()
	return slices.Contains(names, name), err
}

// nameIsFree refuses a name that is registered.
func nameIsFree(name string) error {
	taken, err := isRegistered(name)
	if err == nil && taken {
		err = fmt.Errorf("name %q: the kernel has a congestion control of this name already", name)
	}
	return err
}

// unregisterTimeout limits the time that the kernel takes to release a control whose pin was
// removed: a grace period of RCU, and a run of a work queue.
const unregisterTimeout = 2 * time.Second

// waitUnregistered waits until the name is not registered any more.
func waitUnregistered(name string) error {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		here, err := isRegistered(name)
		if err != nil || !here {
			return err
		}
		if time.Since(begin) > unregisterTimeout {
			return errors.New("another process keeps it registered")
		}
	}
}
