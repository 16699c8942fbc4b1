package subject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/undo"
)

// settle is the time within which a command that cannot run at all ends.
var settle = 300 * time.Millisecond

// commandLimit is how long Begin with an End, and End, may take.
const commandLimit = time.Minute

// command tunes each host by a shell command.
type command struct {
	none
	spec  Spec
	sites sites
	home  home
}

func newCommand(s Spec, w World) (*command, error) {
	all, err := newSites(w)
	if err != nil {
		return nil, err
	}
	return &command{spec: s, sites: all, home: home{net: w.Net, name: s.Name}}, nil
}

func (c *command) begin(ctx context.Context, u *undo.Stack) error {
	if err := c.sites.keepSysctls(u); err != nil {
		return err
	}
	if c.spec.End != "" {
		return c.beginAndEnd(ctx, u)
	}
	u.Push("", c.sites.end)
	for _, s := range c.sites {
		cmd, err := c.shell(s, c.spec.Begin)
		if err != nil {
			return err
		}
		if err := s.start("begin", s.cgroup, cmd); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settle):
	}
	var errs []error
	for _, s := range c.sites {
		errs = append(errs, s.process.lost())
	}
	return errors.Join(errs...)
}

// beginAndEnd runs Begin to its end, and End at Stop. End runs also if Begin failed,
// because Begin may have done part of its work.
func (c *command) beginAndEnd(ctx context.Context, u *undo.Stack) error {
	for _, s := range c.sites {
		out, err := s.log.pipe()
		if err != nil {
			return err
		}
		u.Push("", out.Close)
		u.Push("", func() error { return c.run(context.Background(), s, "end", c.spec.End, out) })
		if err := c.run(ctx, s, "begin", c.spec.Begin, out); err != nil {
			return err
		}
	}
	return nil
}

// run runs a shell on a site to its end. What it leaves in the background goes on
// and may write to out.
func (c *command) run(ctx context.Context, s *site, name, script string, out *pipe) error {
	cmd, err := c.shell(s, script)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = out.File, out.File
	p := &process{name: name + " on " + s.host.Name, log: s.log, loose: true}
	if err := p.start(s.host, s.cgroup, cmd); err != nil {
		return err
	}
	select {
	case <-p.exited:
		err = p.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(commandLimit):
		err = fmt.Errorf("it has not ended after %s", commandLimit)
	}
	if err == nil {
		return nil
	}
	p.signal(unix.SIGKILL)
	<-p.exited
	out.flush()
	return fmt.Errorf("%s: %w\n%s", p.name, err, s.log.end())
}

func (c *command) shell(s *site, script string) (*exec.Cmd, error) {
	dir, err := c.home.hostDir(s.host.Name)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "TCPILOT_LAB_HOST="+s.host.Name,
		"TCPILOT_LAB_CGROUP="+s.cgroup.Path, "TCPILOT_LAB_DIR="+dir)
	return cmd, nil
}

func (c *command) log() string  { return c.sites.text() }
func (c *command) close() error { return c.home.remove() }
