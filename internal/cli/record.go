package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/record"
)

func (a *app) record() *cobra.Command {
	var (
		sf       sampleFlags
		duration time.Duration
		force    bool
	)
	cmd := &cobra.Command{
		Use:   "record FILE",
		Short: "Write samples to a file, for replay",
		Long: `Write samples to FILE, in a compact form that 'tcpilot replay' reads; "-" is the
standard output. It ends after --count samples, after --duration, or with Ctrl-C.
With --json the file has one JSON object per line, for people and other programs;
it cannot be replayed. The file says which addresses this host talked to: it can
be read by its owner only.`,
		Example: `  tcpilot record samples.tcpi --duration 1h
  tcpilot record - --json --count 100 | jq .`,
		Args: console.Args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, argv []string) error {
			f, err := sf.filter()
			if err != nil {
				return err
			}
			if argv[0] == "-" && a.Terminal && !a.JSON {
				return console.Usagef("a recording is not text: name a file, or use --json")
			}
			if duration < 0 {
				return console.Usagef("--duration %s: want 0 for no limit, or more", duration)
			}
			ctx := cmd.Context()
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
			rec := &recording{a: a, limit: sf.count, json: a.JSON}
			return rec.run(ctx, argv[0], force, f)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&duration, "duration", 0, "end after this `TIME`; 0 is no limit")
	f.BoolVar(&force, "force", false, "overwrite FILE if it exists")
	sf.add(cmd)
	a.JSONFlag(cmd, "write JSON lines instead, which cannot be replayed")
	return cmd
}

// recording is one run of record.
type recording struct {
	a     *app
	limit uint64
	json  bool

	count, lost uint64
	started     time.Time
	told        time.Time // when progress was last shown
}

// progressEvery is how often record shows its progress.
const progressEvery = time.Second

func (r *recording) run(ctx context.Context, name string, force bool, f api.SampleFilter) error {
	meta, err := r.meta(ctx)
	if err != nil {
		return err
	}
	r.started = r.a.Now()
	if name == "-" {
		return r.copy(ctx, r.a.Stdout, meta, f)
	}
	file, err := create(name, force)
	if err != nil {
		return err
	}
	err = r.copy(ctx, file, meta, f)
	if cerr := file.Close(); cerr != nil && err == nil {
		err = fmt.Errorf("close recording: %w", cerr)
	}
	r.summary(name)
	return err
}

// copy writes samples to out until there are enough, ctx ends or the daemon stops.
func (r *recording) copy(ctx context.Context, out io.Writer, meta record.Meta, f api.SampleFilter) error {
	put, flush, err := r.sink(out, meta)
	if err != nil {
		return err
	}
	for line, err := range r.a.client().Stream(ctx, f) {
		if err == nil {
			err = r.take(&line, put)
		}
		if err != nil {
			return errors.Join(err, flush())
		}
		if r.limit > 0 && r.count >= r.limit {
			break
		}
	}
	return flush()
}

func (r *recording) take(line *api.Sample, put func(*api.Sample) error) error {
	if line.Kind == api.KindLost {
		r.lost += line.Lost
		return nil
	}
	if err := put(line); err != nil {
		return err
	}
	r.count++
	if now := r.a.Now(); r.a.StderrTerminal && now.Sub(r.told) >= progressEvery {
		r.told = now
		fmt.Fprintf(r.a.Stderr, "\r%s in %s", console.Plural(int(r.count), "sample"), console.Span(now.Sub(r.started)))
	}
	return nil
}

func (r *recording) summary(name string) {
	lost := ""
	if r.lost > 0 {
		lost = fmt.Sprintf(", %d lost because this program was too slow", r.lost)
	}
	start := ""
	if !r.told.IsZero() {
		start = "\r"
	}
	fmt.Fprintf(r.a.Stderr, "%s%s: %s in %s%s\n", start, name, console.Plural(int(r.count), "sample"), console.Span(r.a.Now().Sub(r.started)), lost)
}

// sink returns a function that writes one sample in the requested format.
func (r *recording) sink(out io.Writer, meta record.Meta) (put func(*api.Sample) error, flush func() error, err error) {
	if r.json {
		e := json.NewEncoder(out)
		return func(s *api.Sample) error {
			if err := e.Encode(s); err != nil {
				return fmt.Errorf("write sample: %w", err)
			}
			return nil
		}, func() error { return nil }, nil
	}
	w, err := record.NewWriter(out, meta)
	if err != nil {
		return nil, nil, err
	}
	return func(s *api.Sample) error {
		sample := s.Sample()
		return w.Write(&sample)
	}, w.Flush, nil
}

// meta asks the daemon for the recording's metadata.
func (r *recording) meta(ctx context.Context) (m record.Meta, err error) {
	c := r.a.client()
	status, err := c.Status(ctx)
	if err != nil {
		return m, err
	}
	rules, err := c.Rules(ctx)
	if err != nil {
		return m, err
	}
	m = record.Meta{Created: r.a.Now().UTC(), Version: status.Version, Kernel: status.Kernel}
	for _, rule := range rules.Rules {
		m.Rules = append(m.Rules, record.RuleName{Class: rule.Class, Name: rule.Name})
	}
	return m, nil
}

func create(name string, force bool) (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s exists: use --force to overwrite it", name)
	}
	if err != nil {
		return nil, fmt.Errorf("create recording: %w", err)
	}
	return f, nil
}
