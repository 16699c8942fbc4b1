package subject

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/undo"
)

const (
	// readyLimit is how long a tuner may take to be ready: an emulated machine needs
	// many times the half second of a real one.
	readyLimit = 90 * time.Second
	// readyPoll is the time between two checks.
	readyPoll = 100 * time.Millisecond
	// askLimit is how long tcpilot may take to answer.
	askLimit = 30 * time.Second
)

// tcpilot runs a daemon in the namespace of each tuned host, on its cgroup. Its
// state directory stays between rounds, unless the world is fresh.
type tcpilot struct {
	binary string
	config string // what all daemons have in common
	fresh  bool
	pods   bool // the sites are nodes of pods; each has a directory with the records of its pods
	sites  sites
	home   home
}

func newTcpilot(s Spec, w World) (*tcpilot, error) {
	all, err := newSites(w)
	if err != nil {
		return nil, err
	}
	t := &tcpilot{binary: w.Binary, config: s.Config, fresh: w.Fresh, sites: all, home: home{net: w.Net, name: s.Name}}
	if err := t.check(); err != nil {
		return nil, err
	}
	t.config, err = drawAlike(s.Config, rand.Text())
	return t, err
}

// check has tcpilot check the configuration, so that a mistake is found before the run.
func (t *tcpilot) check() error {
	dir, err := os.MkdirTemp("", "tcpilot-lab-")
	if err != nil {
		return fmt.Errorf("check config: %w", err)
	}
	defer os.RemoveAll(dir)
	f := files{cgroup: t.sites[0].cgroup.Path, bpffs: dir, dir: dir}
	if err := os.WriteFile(f.config(), []byte(f.configure(t.config)), 0o600); err != nil {
		return fmt.Errorf("check config: %w", err)
	}
	_, err = t.run(context.Background(), "check", f.config())
	if err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), f.config(), "config"))
	}
	return nil
}

// run runs a command of tcpilot that ends by itself.
func (t *tcpilot) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.binary, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run tcpilot %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

func (t *tcpilot) begin(ctx context.Context, u *undo.Stack) error {
	all := make([]files, len(t.sites))
	for i, s := range t.sites {
		var err error
		if all[i], err = t.prepare(s, u); err != nil {
			return err
		}
	}
	u.Push("", t.sites.end)
	for i, s := range t.sites {
		cmd := exec.Command(t.binary, "run", "--config", all[i].config())
		if err := s.start("tcpilot", nil, cmd); err != nil {
			return err
		}
	}
	for i, s := range t.sites {
		err := s.process.ready(ctx, func() error {
			_, err := t.run(ctx, "status", "--json", "--socket", all[i].socket())
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare writes a site's configuration and mounts a BPF file system for it. Unmounting that
// removes the pins that a killed daemon leaves.
func (t *tcpilot) prepare(s *site, u *undo.Stack) (files, error) {
	dir, err := t.home.hostDir(s.host.Name)
	if err != nil {
		return files{}, err
	}
	bpffs, err := t.home.net.BPFFS(dir)
	if err != nil {
		return files{}, err
	}
	u.Push("", func() error {
		if err := unix.Unmount(bpffs, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount bpffs: %w", err)
		}
		return os.Remove(bpffs)
	})
	f := files{cgroup: s.cgroup.Path, bpffs: bpffs, dir: dir}
	if t.fresh {
		if err := os.RemoveAll(f.state()); err != nil {
			return files{}, fmt.Errorf("forget what was learned: %w", err)
		}
	}
	text := t.config
	if t.pods {
		if text, err = withEntry(text, "pods", "dir", f.pods()); err != nil {
			return files{}, err
		}
	}
	if err := os.WriteFile(f.config(), []byte(f.configure(text)), 0o600); err != nil {
		return files{}, fmt.Errorf("write config: %w", err)
	}
	return f, nil
}

// state returns the output of `tcpilot paths --json` of each tuned host, by its name.
func (t *tcpilot) state(ctx context.Context) ([]byte, error) { return t.ask(ctx, "paths") }

// ask returns the output of a command with --json for each tuned host, by its name.
func (t *tcpilot) ask(ctx context.Context, command string) ([]byte, error) {
	all := map[string]json.RawMessage{}
	for _, s := range t.sites {
		dir, err := t.home.hostDir(s.host.Name)
		if err != nil {
			return nil, err
		}
		out, err := t.run(ctx, command, "--json", "--socket", files{dir: dir}.socket())
		if err != nil {
			return nil, errors.Join(err, s.process.lost())
		}
		all[s.host.Name] = out
	}
	return json.Marshal(all)
}

func (t *tcpilot) log() string  { return t.sites.text() }
func (t *tcpilot) close() error { return t.home.remove() }
