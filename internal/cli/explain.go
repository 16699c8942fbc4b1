package cli

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

func (a *app) explain() *cobra.Command {
	var (
		r     api.ExplainRequest
		local string
	)
	cmd := &cobra.Command{
		Use:   "explain ADDR[:PORT]",
		Short: "Show what a new connection would get, and why",
		Long: `Show what a new connection to ADDR would get: the rule that it matches, the entry of
the kernel's policy table with the longest match, each field with its value and
reason, and the shares of the congestion controls. Fields that the rule adapts to
the path, but that have the kernel's value now, are listed with what decides that.
With --incoming, ADDR connects to this host.`,
		Example: `  tcpilot explain 192.0.2.7:443
  tcpilot explain 2001:db8::7 --incoming --local-port 443
  tcpilot explain [2001:db8::7]:443 --cgroup /sys/fs/cgroup/system.slice/nginx.service`,
		Args: console.Args(1, 1, "ADDR[:PORT]"),
		RunE: func(cmd *cobra.Command, argv []string) (err error) {
			if r.Remote, r.RemotePort, err = parseTarget(argv[0]); err != nil {
				return err
			}
			if local != "" {
				if r.Local, err = netip.ParseAddr(local); err != nil {
					return console.Usagef("--local %q is not an IP address", local)
				}
			}
			if r.Cgroup != "" {
				if r.Cgroup, err = fileArg(r.Cgroup); err != nil {
					return err
				}
			}
			return show(cmd.Context(), a, r.Resource(), a.renderExplanation)
		},
	}
	f := cmd.Flags()
	f.StringVar(&local, "local", "", "local `ADDRESS`")
	f.Uint16Var(&r.LocalPort, "local-port", 0, "local `PORT`")
	f.StringVar(&r.Cgroup, "cgroup", "", "cgroup v2 `DIRECTORY` of the socket")
	f.Uint64Var(&r.NetNS, "netns", 0, "network namespace `COOKIE` of the socket; 0 is the daemon's own")
	f.StringVar(&r.Pod, "pod", "", "the socket's `POD`, as namespace/name, instead of --netns")
	console.Exclusive(cmd, "pod", "netns")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("pod", a.completePods))
	f.BoolVar(&r.Incoming, "incoming", false, "the remote side connects")
	cobra.CheckErr(cmd.MarkFlagDirname("cgroup"))
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

// parseTarget reads ADDR, ADDR:PORT, or [ADDR]:PORT.
func parseTarget(s string) (netip.Addr, uint16, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap(), ap.Port(), nil
	}
	addr, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil {
		return addr, 0, console.Usagef("%q is not an address, nor an address and port (host names are not looked up)", s)
	}
	return addr.Unmap(), 0, nil
}

func (a *app) renderExplanation(w io.Writer, e api.Explanation) {
	target := e.Request.Remote.String()
	if e.Request.RemotePort != 0 {
		target = netip.AddrPortFrom(e.Request.Remote, e.Request.RemotePort).String()
	}
	verb := "to"
	if e.Request.Incoming {
		verb = "from"
	}
	if e.Mode == engine.ModeObserve {
		fmt.Fprintf(w, "%s\n\n", a.Paint.Warn(observeLine+"; what follows would be done"))
	}
	fmt.Fprintf(w, "A new connection %s %s: %s\n\n", verb, a.Paint.Bold(target), e.Why)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	if e.Pod != "" {
		line("pod", "%s", e.Pod)
	}
	if e.Rule == "" {
		line("rule", "none")
	} else {
		line("rule", "%s (%s), which matches: %s", e.Rule, e.Action, e.Match)
	}
	line("reason", "%s", e.Reason)
	switch en := e.Entry; {
	case en == nil:
		line("entry", "none in the policy table")
	case en.Expired:
		line("entry", "%s, policy %d (%s), %s", en.Prefix, en.PolicyID, en.Reason,
			a.Paint.Warn("expired "+fmtAgo(a.Now(), en.Expires)+": the kernel ignores it"))
	default:
		line("entry", "%s, policy %d (%s), valid for %s", en.Prefix, en.PolicyID, en.Reason, console.Span(en.Expires.Sub(a.Now())))
	}
	if r := e.Rollout; r != nil && (r.Share < 1 || r.By != "") {
		line("rollout", "%s", fmtRollout(r, a.Now()))
	}
	if e.HoldOut > 0 {
		more := ""
		if e.Path != nil && e.Path.HoldOut.More > 1 {
			more = "; more than usual, because connections were faster in recent slices of time that got the defaults"
		}
		line("hold-out", "%s of connections get kernel defaults, to compare with%s", fmtShare(e.HoldOut), more)
	}
	if l := e.RateLimit; l != nil {
		left := ""
		if l.Left > 0 {
			left = fmt.Sprintf(" (%s of it left to other traffic of the pod)", fmtRate(float64(l.Left)))
		}
		line("limit", "%s%s; a new connection gets %s: %s", limits(l.Total, l.Connection), left, fmtRate(float64(l.New)), l.Why)
	}
	if o := e.OnRTO; o != nil {
		line("on_rto", "%s", onRTO(o))
	}
	if e.Path != nil {
		p := e.Path
		line("path", "%s: %s, gain over hold-out %s", p.Prefix, console.Plural(int(p.Samples), "sample"), fmtGain(p.HoldOut.Gain))
		if m := &p.PathMetrics; !m.Updated.IsZero() {
			line("network", "min RTT %s, RTT %s, ssthresh %s, carried %s, loss %s, rate %s, receive rate %s%s; measured %s", fmtMicros(m.MinRTT), fmtMicros(m.SRTT),
				fmtPackets(m.Ssthresh), fmtPackets(m.Carried), fmtLoss(m), fmtRate(float64(m.Rate)), fmtRate(float64(m.ReceiveRate)), activeNow(m), fmtAgo(a.Now(), m.Updated))
		}
	}
	if n := e.Network; n != nil {
		assumed := ""
		if n.AssumedFrom != "" {
			assumed = ", assumed from " + n.AssumedFrom
		}
		line("type", "%s%s: %s", n.Type, assumed, n.Why)
	}
	if p := e.Path; p != nil {
		if why := p.RateLimitWhy; why != "" {
			line("policer", "%s", why)
		}
		if b := p.RTOMinBarred; b != nil {
			line("rto_min", "%s", fmtBarred(b, a.Now()))
		}
		if p.Peer != nil {
			line("peer", "%s", fmtPeer(p.Peer, a.Now()))
		}
		if b := p.LeftToDefault; b != nil {
			line("left", "to kernel defaults for %s: %s", console.Span(b.Until.Sub(a.Now())), b.Why)
		}
		if s := p.Switched; s != nil {
			line("running", "%s", fmtSwitched(s, a.Now()))
		}
		if p.Slice > 0 {
			line("draw", "one arm for all connections that begin in the same %s", fmtDuration(p.Slice))
		}
	}
	a.renderFields(w, e)
	a.renderLive(w, e.Live)
	for _, n := range e.Notes {
		fmt.Fprintf(w, "\nNote: %s\n", n)
	}
}

// fmtSwitched says what became of running connections: those that got another congestion control, and those that kept theirs.
func fmtSwitched(s *engine.Switched, now time.Time) string {
	group := func(g engine.RunningGroup, verb string) string {
		if g.Connections == 0 {
			return "none" + verb
		}
		return fmt.Sprintf("%d%s (%s, %s retransmitted)", g.Connections, verb, fmtRate(float64(g.Goodput)), fmtShare(g.Retrans))
	}
	if b := s.Stopped; b != nil {
		return fmt.Sprintf("connections keep their arm for %s: %s", console.Span(b.Until.Sub(now)), b.Why)
	}
	return fmt.Sprintf("connections get %s: %s, %s, gain %s; begun %s", s.To, group(s.Switched, " did"), group(s.Kept, " kept their arm"), fmtGain(s.Gain), fmtAgo(now, s.Since))
}

// activeNow adds the number of established connections, if they are counted.
func activeNow(m *engine.PathMetrics) string {
	if m.Active == nil {
		return ""
	}
	return fmt.Sprintf(", %s active", console.Plural(int(*m.Active), "connection"))
}

// kernelValue is shown in place of the value of a field that is left to the kernel. Which value that
// is depends on sysctls, the route and the application.
const kernelValue = "kernel's"

func (a *app) renderFields(w io.Writer, e api.Explanation) {
	if len(e.Fields) > 0 {
		a.Heading(w, "Fields")
		t := console.NewTable("FIELD", ">VALUE", "REASON", "APPLIED", "WHY")
		for _, f := range e.Fields {
			value := fmtValue(f.Value, f.Unit)
			if f.Kernel {
				value = kernelValue
			}
			t.Row(f.Field, value, f.Reason, yesNo(f.Applied), f.Why)
		}
		t.Write(w, a.Paint, "  ")
	}
	if len(e.Arms) > 0 {
		a.Heading(w, "Congestion control")
		weight := ">WEIGHT"
		if e.Mode == engine.ModeObserve {
			weight = ">WOULD GET"
		}
		t := console.NewTable("ARM", weight, "WHY")
		for _, c := range e.Arms {
			t.Row(c.CC.String(), fmtShare(c.Weight), c.Why)
		}
		t.Write(w, a.Paint, "  ")
	}
}
