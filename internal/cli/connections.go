package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
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
			return f, console.Usagef("%w", err)
		}
	}
	return f, nil
}

const connectionsLong = `Show connections as they end, and long-lived ones every few seconds, one line each
(a live tail of what the learner is fed with). Ctrl-C ends it.

  CONNECTION  local port, -> outgoing or <- incoming, remote address and port
  CC, MODE    congestion control in use, and what it is doing, if it is one of
              tcpilot's own
  ACKED, RECV bytes that the peer acknowledged, and that it sent
  RTT         smoothed (least) round-trip time
  RETR        segments retransmitted / data segments sent
  RATE        the kernel's latest delivery rate; "~": the application was the limit
  NOTE        how it ended, and: hold-out (left alone), app-cc (the application
              chose), arm-failed, cc-changed, adopted

With --wide also what a congestion control of tcpilot's own (tcpilot_*) goes by:

  BW, BASE    bandwidth and round-trip time without a queue, as it believes them
  HI, LO      packets in flight that it takes the path to hold, and those that it
              thinks safe for now
  ALPHA       share of packets marked (ECN), smoothed
  WMAX        packets in the window before it was last cut`

func (a *app) connections() *cobra.Command {
	var sf sampleFlags
	var wide bool
	cmd := &cobra.Command{
		Use:     "connections",
		Aliases: []string{"conns"},
		Short:   "Show connections live, as they end",
		Long:    connectionsLong,
		Example: `  tcpilot connections --min-bytes 1000000
  tcpilot connections --kind interval --wide
  tcpilot connections --remote 192.0.2.0/24 --json | jq .srtt_us`,
		Args: console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := sf.filter()
			if err != nil {
				return err
			}
			return a.tail(cmd.Context(), f, sf.count, wide)
		},
	}
	sf.add(cmd)
	cmd.Flags().BoolVar(&wide, "wide", false, "also what tcpilot's own congestion controls go by")
	a.JSONFlag(cmd, "write one JSON object per line (kind \"lost\": samples missed)")
	return cmd
}

// tail prints samples until there are count (0: no limit) or ctx ends.
func (a *app) tail(ctx context.Context, f api.SampleFilter, count uint64, wide bool) error {
	var n uint64
	first := true
	for line, err := range a.client().Stream(ctx, f) {
		if err == nil {
			err = a.printSample(&line, first, wide)
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

const connectionFormat = "%-12s %-8s %-10s %-44s %-15s %-12s %9s %9s %9s %18s %12s %13s  %s"

// The columns of --wide, and what they are wide; see controlCells.
var (
	controlHeads  = []string{"BW", "BASE", "HI", "LO", "ALPHA", "WMAX"}
	controlWidths = []int{13, 8, 6, 6, 7, 6}
)

func controlLine(cells []string) (line string) {
	for i, c := range cells {
		line += fmt.Sprintf("%*s ", controlWidths[i], c)
	}
	return line + " "
}

func (a *app) printSample(s *api.Sample, first, wide bool) error {
	if a.JSON {
		b, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode sample: %w", err)
		}
		return a.Print(append(b, '\n'))
	}
	out := ""
	if first {
		note := "NOTE"
		if wide {
			note = controlLine(controlHeads) + note
		}
		out = a.Paint.Bold(fmt.Sprintf(connectionFormat, "TIME", "KIND", "RULE", "CONNECTION", "CC", "MODE",
			"DURATION", "ACKED", "RECV", "RTT", "RETR", "RATE", note)) + "\n"
	}
	if s.Kind == api.KindLost {
		out += a.Paint.Warn(fmt.Sprintf("(%d samples not shown: this terminal was too slow)", s.Lost)) + "\n"
	} else {
		out += connectionLine(s, wide) + "\n"
	}
	return a.Print([]byte(out))
}

func connectionLine(s *api.Sample, wide bool) string {
	kind := s.Kind
	if kind == "failed-connect" {
		kind = "failed"
	}
	rule := s.Rule
	if rule == "" {
		rule = console.None
	}
	rate := fmtRate(float64(s.DeliveryRate))
	if s.Has("app-limited") && s.DeliveryRate > 0 {
		rate = "~" + rate
	}
	rtt := console.None
	if s.SRTT > 0 || s.MinRTT > 0 {
		rtt = fmt.Sprintf("%s (%s)", fmtMicros(s.SRTT), fmtMicros(s.MinRTT))
	}
	note := ""
	if wide {
		note = controlLine(controlCells(s.Control))
	}
	note += s.End
	for _, f := range s.Flags {
		switch f {
		case "hold-out", "app-cc", "arm-failed", "cc-changed", "adopted":
			note += " " + f
		}
	}
	return fmt.Sprintf(connectionFormat, s.At.Local().Format("15:04:05.000"), kind, rule,
		fmtConnection(s), s.CC, fmtMode(s.Control), fmtDuration(s.Duration.Round(time.Microsecond)),
		fmtBytes(s.BytesAcked), fmtBytes(s.BytesReceived), rtt, fmt.Sprintf("%d/%d", s.Retrans, s.DataSegsOut), rate, note)
}

// fmtConnection writes the ends of a connection: :50001 -> 192.0.2.7:443.
func fmtConnection(s *api.Sample) string {
	arrow := "<-"
	if s.Has("outgoing") {
		arrow = "->"
	}
	return fmt.Sprintf(":%d %s %s", s.Local.Port(), arrow, s.Remote)
}

func fmtMode(c *api.ControlState) string {
	if c == nil {
		return console.None
	}
	return c.Mode
}

// controlCells are the cells below controlHeads; c may be nil.
func controlCells(c *api.ControlState) []string {
	if c == nil {
		return []string{console.None, console.None, console.None, console.None, console.None, console.None}
	}
	alpha, wMax := console.None, console.None
	if c.ECN { // else no mark has been answered yet
		alpha = fmtShare(c.Alpha)
	}
	if c.WMax > 0 {
		wMax = fmtCount(uint64(c.WMax))
	}
	base := time.Duration(math.Round(c.MinRTT * 1e9))
	return []string{fmtRate(float64(c.BW)), fmtDuration(base), fmtBound(c.InflightHi), fmtBound(c.InflightLo), alpha, wMax}
}

func fmtBound(packets *uint32) string {
	if packets == nil {
		return console.None
	}
	return fmtCount(uint64(*packets))
}

// renderLive lists what the congestion controls of live connections, the samples
// of which are given, go by. It prints nothing without samples.
func (a *app) renderLive(w io.Writer, live []api.Sample) {
	if len(live) == 0 {
		return
	}
	a.Heading(w, "Live connections")
	heads := []string{"CONNECTION", "CC", "MODE", ">CWND", ">RTT"}
	for _, h := range controlHeads {
		heads = append(heads, ">"+h)
	}
	t := console.NewTable(append(heads, "SEEN")...)
	for i := range live {
		s := &live[i]
		row := []string{fmtConnection(s), s.CC, fmtMode(s.Control), fmtCount(uint64(s.Cwnd)), fmtMicros(s.SRTT)}
		row = append(row, controlCells(s.Control)...)
		t.Row(append(row, fmtAgo(a.Now(), s.At))...)
	}
	t.Write(w, a.Paint, "  ")
}
