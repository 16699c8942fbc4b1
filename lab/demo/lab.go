package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/undo"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
	"golang.org/x/sys/unix"
)

// The demo's path: its rate is low enough and its round trip long enough that the
// machine's CPU is never the limit.
const (
	rate      = 200e6         // bit/s
	queue     = rate / 8 / 20 // bytes: 50 ms
	roundTrip = 5 * time.Millisecond
	port      = 5201
	prefix    = "10.77.1.0/24" // the server's path in lab/topology's star
)

// lab is the demo's network with its processes.
type lab struct {
	binary string
	net    *topology.Net
	star   *topology.Star
	cgroup *topology.Cgroup
	client *load.Agent
	undo   undo.Stack
	dir    string
	daemon *exec.Cmd
	exited chan error
	log    strings.Builder // the daemon writes to it until exited
}

func build(binary string, loss float64) (_ *lab, err error) {
	if _, err := topology.Sweep(); err != nil {
		return nil, fmt.Errorf("clean up after a killed run: %w", err)
	}
	l := &lab{binary: binary}
	if l.net, err = topology.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.star, err = topology.NewStar(l.net, "server"); err != nil {
		return nil, err
	}
	for _, h := range []*topology.Host{l.star.Client, l.star.Remotes[0].Host} {
		if err := h.SetCongestion("cubic"); err != nil {
			return nil, err
		}
	}
	if err := l.impair(loss); err != nil {
		return nil, err
	}
	return l, l.populate()
}

// impair gives the path its loss, rate and delay.
func (l *lab) impair(loss float64) error {
	far := l.star.Remotes[0]
	if err := link.OffloadsOff(l.star.Access, l.star.Entry, far.Near, far.Far); err != nil {
		return err
	}
	return errors.Join(
		l.shape(far.Near, far.Far, link.Spec{Rate: rate, Queue: link.Queue{Bytes: queue}, Loss: loss}),
		l.shape(l.star.Entry, l.star.Access, link.Spec{Delay: roundTrip}))
}

func (l *lab) shape(from, to *topology.End, s link.Spec) error {
	d, err := link.Shape(link.Ends{From: from, To: to}, s, link.Auto)
	if err != nil {
		return err
	}
	l.undo.Push("", d.Close)
	return nil
}

// populate starts the load agents and makes a directory for tcpilot's files.
func (l *lab) populate() (err error) {
	if l.cgroup, err = l.net.Cgroup("demo"); err != nil {
		return err
	}
	if l.client, err = load.StartAgent(l.star.Client, l.cgroup); err != nil {
		return err
	}
	l.undo.Push("", l.client.Close)
	server, err := load.StartAgent(l.star.Remotes[0], nil)
	if err != nil {
		return err
	}
	l.undo.Push("", server.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err = server.Listen(ctx, load.ListenSpec{Address: fmt.Sprintf("0.0.0.0:%d", port)}); err != nil {
		return err
	}
	l.dir, err = l.net.Dir("demo")
	return err
}

// connection makes one bulk connection to the server.
func (l *lab) connection(ctx context.Context, d time.Duration) (load.BulkResult, error) {
	to := netip.AddrPortFrom(l.star.Remotes[0].Addr4, port).String()
	return l.client.Bulk(ctx, load.BulkSpec{To: to, Duration: d})
}

func (l *lab) socket() string { return filepath.Join(l.dir, "tcpilot.sock") }

// start runs tcpilot on the demo's cgroup and waits until it answers.
func (l *lab) start(ctx context.Context) error {
	bpffs, err := l.net.BPFFS(l.dir)
	if err != nil {
		return err
	}
	config := filepath.Join(l.dir, "tcpilot.yaml")
	text := fmt.Sprintf(`cgroup: %s
bpffs: %s
run_dir: %s
state_dir: %s
metrics: {listen: ""}
learning: {hold_out: %g}
rules:
  - {name: demo, learn: {arms: [cubic, bbr, reno]}}
`, l.cgroup.Path, bpffs, l.dir, filepath.Join(l.dir, "state"), holdOut)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	l.daemon = exec.Command(l.binary, "run", "--config", config, "--socket", l.socket())
	l.daemon.Stdout, l.daemon.Stderr = &l.log, &l.log
	if err := l.star.Client.Start(l.daemon); err != nil {
		l.daemon = nil
		return err
	}
	l.exited = make(chan error, 1)
	go func() { l.exited <- l.daemon.Wait() }()
	deadline := time.After(10 * time.Second)
	for {
		_, err := l.path(ctx)
		if err == nil {
			return nil
		}
		select {
		case exit := <-l.exited:
			l.exited <- exit // for close
			return fmt.Errorf("the daemon ended: %w\n%s", exit, l.log.String())
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("the daemon does not answer: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// path has the fields of engine.PathState that the demo reads from `tcpilot paths --json`.
type path struct {
	Prefix string `json:"prefix"`
	Arms   []arm  `json:"arms"`

	HoldOut struct {
		Count uint64 `json:"count"`
		Gain  struct {
			Ratio float64 `json:"ratio"` // with its interval; all are 0 if there is none yet
			Low   float64 `json:"low"`
			High  float64 `json:"high"`
		} `json:"gain"`
	} `json:"hold_out"`
}

type arm struct {
	CC     string  `json:"cc"`
	Weight float64 `json:"weight"`
}

// shares formats the arms' shares of the next connections, the greatest first.
func (p path) shares() string {
	arms := slices.Clone(p.Arms)
	slices.SortStableFunc(arms, func(a, b arm) int { return int(1e6 * (b.Weight - a.Weight)) })
	var parts []string
	for _, a := range arms {
		parts = append(parts, fmt.Sprintf("%s %.0f%%", a.CC, 100*a.Weight))
	}
	return strings.Join(parts, "  ")
}

// path asks tcpilot for the path; an unknown one has no arms.
func (l *lab) path(ctx context.Context) (p path, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, l.binary, "paths", "--json", "--socket", l.socket()).Output()
	if err := ctx.Err(); err != nil { // the command was killed because ctx ended
		return p, err
	}
	if err != nil {
		return p, err
	}
	var list struct {
		Paths []path `json:"paths"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return p, fmt.Errorf("read paths: %w", err)
	}
	for _, p := range list.Paths {
		if p.Prefix == prefix {
			return p, nil
		}
	}
	return p, nil
}

// close stops tcpilot and removes everything.
func (l *lab) close() error {
	var errs []error
	if l.daemon != nil {
		errs = append(errs, l.stop())
	}
	return errors.Join(append(errs, l.undo.Run(), l.net.Close())...)
}

// stop stops tcpilot, which then detaches its programs.
func (l *lab) stop() error {
	l.daemon.Process.Signal(unix.SIGTERM)
	select {
	case <-l.exited:
		return nil
	case <-time.After(5 * time.Second):
		l.daemon.Process.Kill()
		<-l.exited
		return errors.New("tcpilot did not end within 5 s of SIGTERM and was killed")
	}
}
