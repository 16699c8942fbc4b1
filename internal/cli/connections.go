package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
)

// sampleFlags are the flags that choose samples.
type sampleFlags struct {
	remote, kind string
	minBytes     uint64
	count        uint64
}

func (s *sampleFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.remote, "remote", "", "only connections with a remote address in `PREFIX`")
	f.StringVar(&s.kind, "kind", "", "only samples of this `kind`: close, interval, failed-connect")
	f.Uint64Var(&s.minBytes, "min-bytes", 0, "only samples with at least `N` bytes acked and received")
	f.Uint64VarP(&s.count, "count", "n", 0, "end after `N` samples; 0 is no limit")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("kind",
		cobra.FixedCompletions([]string{"close", "interval", "failed-connect"}, cobra.ShellCompDirectiveNoFileComp)))
}

func (s *sampleFlags) filter() (f api.SampleFilter, err error) {
	f.MinBytes = s.minBytes
	if s.remote != "" {
		if f.Remote, err = prefixArg(s.remote); err != nil {
			return f, err
		}
	}
	if s.kind != "" {
		if f.Kind, err = api.ParseKind(s.kind); err != nil {
			return f, usageError{err}
		}
	}
	return f, nil
}

const connectionsLong = `Show connections as they end, and long-lived ones every few seconds, one line each
(a live tail of what the learner is fed with). Ctrl-C ends it.

  CONNECTION  local port, -> outgoing or <- incoming, remote address and port
  CC          congestion control in use at the end
  ACKED, RECV bytes that the peer acknowledged, and that it sent
  RTT         smoothed (least) round-trip time
  RETR        segments retransmitted / data segments sent
  RATE        the kernel's latest delivery rate; "~": the application was the limit
  NOTE        how it ended, and: hold-out (left alone), app-cc (the application
              chose), arm-failed, cc-changed, adopted`

func (a *app) connections() *cobra.Command {
	var sf sampleFlags
	cmd := &cobra.Command{
		Use:     "connections",
		Aliases: []string{"conns"},
		Short:   "Show connections live, as they end",
		Long:    connectionsLong,
		Example: `  tcpilot connections --min-bytes 1000000
  tcpilot connections --remote 192.0.2.0/24 --json | jq .srtt_us`,
		Args: args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := sf.filter()
			if err != nil {
				return err
			}
			return a.tail(cmd.Context(), f, sf.count)
		},
	}
	sf.add(cmd)
	a.jsonFlag(cmd, "write one JSON object per line (kind \"lost\": samples missed)")
	return cmd
}

// tail prints samples until there are count (0: no limit) or ctx ends.
func (a *app) tail(ctx context.Context, f api.SampleFilter, count uint64) error {
	var n uint64
	first := true
	for line, err := range a.client().Stream(ctx, f) {
		if err == nil {
			err = a.printSample(&line, first)
		}
		if err != nil {
			return err
		}
		first = false
		if line.Kind != api.KindLost {
			n++
		}
		if count > 0 && n >= count {
			break
		}
	}
	return nil
}

const connectionFormat = "%-12s %-8s %-10s %-44s %-8s %9s %9s %9s %18s %12s %13s  %s"

func (a *app) printSample(s *api.Sample, first bool) error {
	if a.json {
		b, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode sample: %w", err)
		}
		return a.print(append(b, '\n'))
	}
	out := ""
	if first {
		out = a.paint.bold(fmt.Sprintf(connectionFormat, "TIME", "KIND", "RULE", "CONNECTION", "CC",
			"DURATION", "ACKED", "RECV", "RTT", "RETR", "RATE", "NOTE")) + "\n"
	}
	if s.Kind == api.KindLost {
		out += a.paint.warn(fmt.Sprintf("(%d samples not shown: this terminal was too slow)", s.Lost)) + "\n"
	} else {
		out += connectionLine(s) + "\n"
	}
	return a.print([]byte(out))
}

func connectionLine(s *api.Sample) string {
	kind := s.Kind
	if kind == "failed-connect" {
		kind = "failed"
	}
	arrow := "<-"
	if s.Has("outgoing") {
		arrow = "->"
	}
	rule := s.Rule
	if rule == "" {
		rule = none
	}
	rate := fmtRate(float64(s.DeliveryRate))
	if s.Has("app-limited") && s.DeliveryRate > 0 {
		rate = "~" + rate
	}
	rtt := none
	if s.SRTT > 0 || s.MinRTT > 0 {
		rtt = fmt.Sprintf("%s (%s)", fmtMicros(s.SRTT), fmtMicros(s.MinRTT))
	}
	note := s.End
	for _, f := range s.Flags {
		switch f {
		case "hold-out", "app-cc", "arm-failed", "cc-changed", "adopted":
			note += " " + f
		}
	}
	return fmt.Sprintf(connectionFormat, s.At.Local().Format("15:04:05.000"), kind, rule,
		fmt.Sprintf(":%d %s %s", s.Local.Port(), arrow, s.Remote), s.CC, fmtDuration(s.Duration.Round(time.Microsecond)),
		fmtBytes(s.BytesAcked), fmtBytes(s.BytesReceived), rtt, fmt.Sprintf("%d/%d", s.Retrans, s.DataSegsOut), rate, note)
}
