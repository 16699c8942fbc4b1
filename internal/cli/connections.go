package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/console"
)

// sampleFlags are the flags that choose samples.
type sampleFlags struct {
	remote, kind string
	minBytes     size
	count        uint64
}

func (s *sampleFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.remote, "remote", "", "only connections with a remote address in `PREFIX`")
	f.StringVar(&s.kind, "kind", "", "only samples of this `KIND`: close, interval, failed-connect")
	f.Var(&s.minBytes, "min-bytes", "only samples with at least `SIZE` acked and received: 1500, 64KiB, 1MB")
	f.Uint64Var(&s.count, "count", 0, "end after `N` samples; 0 is no limit")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("kind",
		cobra.FixedCompletions([]string{"close", "interval", "failed-connect"}, cobra.ShellCompDirectiveNoFileComp)))
}

func (s *sampleFlags) filter() (f api.SampleFilter, err error) {
	f.MinBytes = uint64(s.minBytes)
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

// size is the value of a flag: a number of bytes, with a unit as in the configuration, or without one.
type size uint64

func (s *size) Set(text string) (err error) {
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return errors.New("it is too large")
	case err != nil:
		n, err = config.ParseSize(text)
	}
	*s = size(n)
	return err
}

func (s *size) String() string { return strconv.FormatUint(uint64(*s), 10) }
func (s *size) Type() string   { return "size" }

const connectionsLong = `Show connections as they end, and long-lived ones every few seconds, one line each
(these are the samples that the learner uses). Ctrl-C ends it.

  POD         pod of the socket, if there are pods
  CONNECTION  local address and port, -> outgoing or <- incoming, remote ones
  CC, MODE    congestion control in use, and what it is doing, if it is one of
              tcpilot's own
  ACKED, RECV bytes that the peer acknowledged, and that it sent
  RTT         smoothed round-trip time, MIN RTT least one
  RETR        segments retransmitted / data segments sent
  RATE        the kernel's latest delivery rate; "~": the application was the limit
  PACED       limit of the pacing rate: its share of a rate limit (of the rule, of
              the path, or of the pod), or what the application or the rule has set
  NOTE        how it ended, and: hold-out (kernel defaults), app-cc (the application
              chose), arm-failed, cc-changed, adopted

On a terminal, as many columns are shown as fit. With --wide all columns are shown,
and the state of tcpilot's own congestion controls (tcpilot_*):

  BW, BASE    estimates of the bandwidth, and of the round-trip time without a queue
  HI, LO      bounds on the packets in flight: by what the path holds, and for now
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
		Example: `  tcpilot connections --min-bytes 1MB
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
	cmd.Flags().BoolVar(&wide, "wide", false, wideDoc+", also the state of tcpilot's own congestion controls")
	a.JSONFlag(cmd, "write one JSON object per line (kind \"lost\": samples missed)")
	return cmd
}

// tail prints samples until there are count (0: no limit) or ctx ends.
func (a *app) tail(ctx context.Context, f api.SampleFilter, count uint64, wide bool) error {
	var n uint64
	l := sampleLines(a.Width, wide, !a.JSON && a.hasPods(ctx))
	first := true
	for line, err := range a.client().Stream(ctx, f) {
		if err == nil {
			err = a.printSample(&line, first, l)
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

// The columns of --wide, and how wide they are; see ccStateCells.
var (
	ccStateHeads  = []string{"BW", "BASE", "HI", "LO", "ALPHA", "WMAX"}
	ccStateWidths = []int{13, 8, 6, 6, 7, 6}
)

// sampleColumn is a column of a live tail. Widths are fixed, because each line is written
// before the next ones are known.
type sampleColumn struct {
	head  string
	width int
	left  bool // left-aligned
	text  bool // may be cut
	// broken: a cell that is too long gets its own line; the other cells follow on the
	// next line.
	broken bool
	// rank is the order in which columns are added as long as there is room.
	rank int
	cell func(*api.Sample) string
}

const (
	podColumn        = 2  // of sampleColumns
	connectionColumn = 3  // of sampleColumns
	connectionWidth  = 46 // width of two IPv4 addresses with ports
	leastConnection  = 40
)

// sampleColumns are the columns in the order in which they are shown.
func sampleColumns() []sampleColumn {
	return []sampleColumn{
		{head: "TIME", width: 8, left: true, rank: 1, cell: func(s *api.Sample) string { return s.At.Local().Format(time.TimeOnly) }},
		{head: "RULE", width: 10, left: true, text: true, rank: 9, cell: func(s *api.Sample) string { return orNone(s.Rule) }},
		{head: "POD", width: 24, left: true, text: true, rank: 7, cell: func(s *api.Sample) string { return orNone(s.Pod) }},
		{head: "CONNECTION", width: leastConnection, left: true, broken: true, rank: 1, cell: fmtConnection},
		{head: "KIND", width: 8, left: true, rank: 8, cell: func(s *api.Sample) string { return strings.TrimSuffix(s.Kind, "-connect") }},
		{head: "CC", width: 15, left: true, rank: 1, cell: func(s *api.Sample) string { return s.CC }},
		{head: "MODE", width: 12, left: true, rank: 13, cell: func(s *api.Sample) string { return fmtMode(s.CCState) }},
		{head: "DURATION", width: 8, rank: 11, cell: func(s *api.Sample) string { return fmtDuration(s.Duration.Round(time.Microsecond)) }},
		{head: "ACKED", width: 8, rank: 2, cell: func(s *api.Sample) string { return fmtBytes(s.BytesAcked) }},
		{head: "RECV", width: 8, rank: 10, cell: func(s *api.Sample) string { return fmtBytes(s.BytesReceived) }},
		{head: "RTT", width: 7, rank: 3, cell: func(s *api.Sample) string { return fmtMicros(s.SRTT) }},
		{head: "MIN RTT", width: 7, rank: 12, cell: func(s *api.Sample) string { return fmtMicros(s.MinRTT) }},
		{head: "RETR", width: 10, rank: 6, cell: func(s *api.Sample) string { return fmt.Sprintf("%d/%d", s.Retrans, s.DataSegsOut) }},
		{head: "RATE", width: 12, rank: 4, cell: fmtSampleRate},
		{head: "PACED", width: 11, rank: 14, cell: func(s *api.Sample) string { return fmtRate(float64(s.MaxPacingRate)) }},
		{head: "NOTE", width: 8, left: true, text: true, rank: 5, cell: fmtNote},
	}
}

// sampleLines returns the columns to show in a terminal of so many columns, 0 for no limit.
func sampleLines(width int, wide, pods bool) []sampleColumn {
	all := sampleColumns()
	connection := connectionColumn
	if !pods {
		all = slices.Delete(all, podColumn, podColumn+1)
		connection--
	}
	if wide {
		last := len(all) - 1
		note := all[last]
		all = all[:last]
		for i, head := range ccStateHeads {
			all = append(all, sampleColumn{head: head, width: ccStateWidths[i], cell: func(s *api.Sample) string { return ccStateCells(s.CCState)[i] }})
		}
		all = append(all, note)
	}
	if wide || width == 0 {
		all[0].width, all[0].cell = 12, func(s *api.Sample) string { return s.At.Local().Format("15:04:05.000") }
		all[connection].width = connectionWidth
		for i := range all {
			all[i].text, all[i].broken = false, false
		}
		return all
	}
	byRank := make([]*sampleColumn, 0, len(all))
	for i := range all {
		byRank = append(byRank, &all[i])
	}
	slices.SortStableFunc(byRank, func(a, b *sampleColumn) int { return cmp.Compare(a.rank, b.rank) })
	room, taken := width+1, 0
	for _, c := range byRank {
		if c.rank > 1 && c.width+1 > room {
			break
		}
		room -= c.width + 1
		taken = c.rank
	}
	grow := max(0, min(room, connectionWidth-leastConnection))
	all[connection].width += grow
	all[len(all)-1].width += max(0, room-grow) // NOTE
	return slices.DeleteFunc(all, func(c sampleColumn) bool { return c.rank > taken })
}

// sampleLine writes the cells of one sample, or the headings.
func sampleLine(columns []sampleColumn, cell func(*sampleColumn) string) string {
	var b strings.Builder
	at := 0
	for i := range columns {
		c := &columns[i]
		text := cell(c)
		if c.text && len(text) > c.width {
			text = text[:c.width-2] + ".."
		}
		if i > 0 {
			b.WriteByte(' ')
			at++
		}
		at += c.width
		if c.broken && len(text) > c.width {
			b.WriteString(text + "\n")
			b.WriteString(strings.Repeat(" ", at))
			continue
		}
		if c.left {
			fmt.Fprintf(&b, "%-*s", c.width, text)
		} else {
			fmt.Fprintf(&b, "%*s", c.width, text)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

func (a *app) printSample(s *api.Sample, first bool, columns []sampleColumn) error {
	if a.JSON {
		b, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode sample: %w", err)
		}
		return a.Print(append(b, '\n'))
	}
	out := ""
	if first {
		out = a.Paint.Bold(sampleLine(columns, func(c *sampleColumn) string { return c.head })) + "\n"
	}
	if s.Kind == api.KindLost {
		out += a.Paint.Warn(fmt.Sprintf("(%d samples not shown: this terminal was too slow)", s.Lost)) + "\n"
	} else {
		out += sampleLine(columns, func(c *sampleColumn) string { return c.cell(s) }) + "\n"
	}
	return a.Print([]byte(out))
}

func orNone(s string) string {
	if s == "" {
		return console.None
	}
	return s
}

func fmtSampleRate(s *api.Sample) string {
	rate := fmtRate(float64(s.DeliveryRate))
	if s.Has("app-limited") && s.DeliveryRate > 0 {
		rate = "~" + rate
	}
	return rate
}

// fmtNote writes how a connection ended, and what was special about it.
func fmtNote(s *api.Sample) string {
	note := s.End
	for _, f := range s.Flags {
		switch f {
		case "hold-out", "app-cc", "arm-failed", "cc-changed", "adopted":
			note += " " + f
		}
	}
	return note
}

// fmtConnection writes the ends of a connection: 192.0.2.1:50001 -> 192.0.2.7:443.
func fmtConnection(s *api.Sample) string {
	arrow := "<-"
	if s.Has("outgoing") {
		arrow = "->"
	}
	return fmt.Sprintf("%s %s %s", s.Local, arrow, s.Remote)
}

func fmtMode(c *api.CCState) string {
	if c == nil {
		return console.None
	}
	return c.Mode
}

// ccStateCells are the cells below ccStateHeads; c may be nil.
func ccStateCells(c *api.CCState) []string {
	if c == nil {
		return []string{console.None, console.None, console.None, console.None, console.None, console.None}
	}
	alpha, wMax := console.None, console.None
	if c.ECN { // otherwise no mark has been answered yet
		alpha = fmtShare(c.Alpha)
	}
	if c.WMax > 0 {
		wMax = fmtCount(uint64(c.WMax))
	}
	return []string{fmtRate(float64(c.BW)), fmtMicros(c.MinRTT), fmtBound(c.InflightHi), fmtBound(c.InflightLo), alpha, wMax}
}

func fmtBound(packets *uint32) string {
	if packets == nil {
		return console.None
	}
	return fmtCount(uint64(*packets))
}

// renderLive lists the state of the congestion controls of live connections, by their
// samples. It prints nothing without samples.
func (a *app) renderLive(w io.Writer, live []api.Sample) {
	if len(live) == 0 {
		return
	}
	a.Heading(w, "Live connections")
	heads := []string{"CONNECTION", "CC", "MODE", ">CWND", ">RTT"}
	for _, h := range ccStateHeads {
		heads = append(heads, ">"+h)
	}
	t := console.NewTable(append(heads, "SEEN")...)
	for i := range live {
		s := &live[i]
		row := []string{fmtConnection(s), s.CC, fmtMode(s.CCState), fmtCount(uint64(s.Cwnd)), fmtMicros(s.SRTT)}
		row = append(row, ccStateCells(s.CCState)...)
		t.Row(append(row, fmtAgo(a.Now(), s.At))...)
	}
	t.Write(w, a.Paint, "  ")
}
