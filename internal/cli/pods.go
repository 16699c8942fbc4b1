package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
)

func (a *app) pods() *cobra.Command {
	sync := false
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "Show the pods of this host, and which rules are for them",
		Long: `Show the pods that the CNI plugin tcpilot-cni has recorded (pods.dir in the
configuration), in the order of their names.

  RULES        rules with a condition on pods (match: {pod: ...}) that the pod
               meets, in the order of matching, and the congestion control that its
               annotation tcpilot.io/congestion-control fixes
  SINCE        when the container runtime added it
  CONNECTIONS  number of those that have ended since the daemon read the pod's
               record, without those that rules leave alone

A second table has the limits of bandwidth, if there are some:

  LIMIT        on the wire, as the annotations kubernetes.io/egress-bandwidth and
               kubernetes.io/ingress-bandwidth ask, or the container runtime
  PASSED       bytes since the limit came into force
  MARKED       packets that passed with a mark of congestion (ECN)
  DROPPED      packets beyond the limit

A third one has the pods with packets above 64 KB (pods.big_tcp), and how many
of them they sent and received, before segmentation.

Below: annotations that are not followed, pods whose packets take the
host's stack although host routing is on (pods.host_routing), how many packets were
routed and how many were left to the stack, and records that are not used, each with
the reason.

The daemon reads the records when the plugin asks it to, and every 5 s. With --sync
it reads them now, and the command waits until the rules for the pods are in force;
that needs root, or membership in the group that socket.admins names.`,
		Example: "  tcpilot pods\n  tcpilot pods --json | jq -r '.pods[].pod'\n  tcpilot explain 192.0.2.7:443 --pod shop/web-1",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sync {
				if err := a.syncPods(cmd.Context()); err != nil {
					return err
				}
			}
			return show(cmd.Context(), a, api.ResourcePods, a.renderPods)
		},
	}
	cmd.Flags().BoolVar(&sync, "sync", false, "read the records first")
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

// syncPods makes the daemon read the records, and writes which were removed, because the list does not
// have them.
func (a *app) syncPods(ctx context.Context) error {
	r, err := a.client().SyncPods(ctx)
	if err != nil {
		return err
	}
	for _, refused := range r.Refused {
		if refused.Removed {
			fmt.Fprintln(a.Stderr, "record "+refusedPod(refused))
		}
	}
	return nil
}

func (a *app) renderPods(w io.Writer, l api.PodList) {
	if len(l.Pods) == 0 {
		fmt.Fprintln(w, "no pods: tcpilot-cni has recorded none on this host")
	} else {
		t := console.NewTable("POD", ">NETNS COOKIE", "RULES", "SINCE", ">CONNECTIONS")
		for i := range l.Pods {
			p := &l.Pods[i]
			t.Row(p.Pod, fmtCount(p.NetNS), podRules(p), fmtAgo(l.At, p.Since), fmtCount(p.Connections))
		}
		t.Fit(a.Width)
		t.Write(w, a.Paint, "")
		a.renderBandwidth(w, l.Pods)
		a.renderBigTCP(w, l.Pods)
	}
	for i := range l.Pods {
		if p := &l.Pods[i]; p.Warning != "" {
			fmt.Fprintf(w, "%s: %s\n", p.Pod, a.Paint.Warn(p.Warning))
		}
	}
	a.renderRouting(w, &l)
	for _, r := range l.Refused {
		fmt.Fprintf(w, "%s\n", a.Paint.Warn("not used: "+refusedPod(r)))
	}
}

// renderRouting says what host routing does, if it is on.
func (a *app) renderRouting(w io.Writer, l *api.PodList) {
	for i := range l.Pods {
		if p := &l.Pods[i]; p.Routing != nil && !p.Routing.Active {
			fmt.Fprintf(w, "%s: packets take the host's stack: %s\n", p.Pod, p.Routing.Why)
		}
	}
	if len(l.Packets) == 0 {
		return
	}
	for _, routed := range []bool{true, false} {
		var parts []string
		for _, c := range l.Packets {
			if c.Routed == routed && c.Packets > 0 {
				parts = append(parts, c.Fate+" "+fmtCount(c.Packets))
			}
		}
		what := map[bool]string{true: "packets routed past the host's stack and netfilter", false: "packets left to the host's stack"}[routed]
		fmt.Fprintf(w, "%s: %s\n", what, cmp.Or(strings.Join(parts, ", "), console.None))
	}
}

// renderBandwidth shows the limits of pods that have some.
func (a *app) renderBandwidth(w io.Writer, pods []api.Pod) {
	t, rows := console.NewTable("POD", "DIRECTION", ">LIMIT", ">PASSED", ">MARKED", ">DROPPED"), 0
	add := func(pod, direction string, b *api.PodBandwidth) {
		if b != nil {
			t.Row(pod, direction, fmtRate(float64(b.Limit)), fmtBytes(b.Passed), fmtCount(b.Marked), fmtCount(b.Dropped))
			rows++
		}
	}
	for i := range pods {
		add(pods[i].Pod, "egress", pods[i].Egress)
		add(pods[i].Pod, "ingress", pods[i].Ingress)
	}
	if rows == 0 {
		return
	}
	a.Heading(w, "Bandwidth")
	t.Write(w, a.Paint, "  ")
}

// renderBigTCP shows the pods that have packets above 64 KB, if that is on, and why others have none.
func (a *app) renderBigTCP(w io.Writer, pods []api.Pod) {
	t, rows := console.NewTable("POD", ">LARGEST PACKET", ">SENT ABOVE 64 KB", ">RECEIVED"), 0
	var without []string
	for i := range pods {
		switch b := pods[i].BigTCP; {
		case b == nil:
		case b.Active:
			t.Row(pods[i].Pod, fmtBytes(uint64(b.Size)), fmtCount(b.Sent), fmtCount(b.Received))
			rows++
		default:
			without = append(without, fmt.Sprintf("%s: packets of at most 64 KB: %s", pods[i].Pod, b.Why))
		}
	}
	if rows > 0 {
		a.Heading(w, "BIG TCP")
		t.Write(w, a.Paint, "  ")
	}
	for _, line := range without {
		fmt.Fprintln(w, line)
	}
}

// podRules lists the rules for a pod, and what its annotation fixes.
func podRules(p *api.Pod) string {
	parts := p.Rules
	if p.Control != "" {
		parts = append(parts[:len(parts):len(parts)], "cc="+p.Control)
	}
	return cmp.Or(strings.Join(parts, ", "), console.None)
}

func refusedPod(r api.RefusedPod) string {
	text := r.Record
	if r.Pod != "" {
		text += " (" + r.Pod + ")"
	}
	text += ": " + r.Why
	if r.Removed {
		text += "; removed"
	}
	return text
}

// renderPodStatus is the line of pods in status.
func (a *app) renderPodStatus(line func(name, format string, args ...any), p *api.PodStatus) {
	if p == nil {
		return
	}
	text := fmt.Sprint(p.Count)
	if p.Refused > 0 {
		text += ", " + a.Paint.Warn(console.Plural(p.Refused, "record")+" not used: see 'tcpilot pods'")
	}
	line("pods", "%s", text)
	for _, warning := range p.Warnings {
		line("", "%s", a.Paint.Warn(warning))
	}
	if r := p.Removal; r != nil {
		text, _ := removalState(r)
		line("", "%s", a.Paint.Warn(text))
	}
}

// removalState says what a removal of the CNI plugin waits for, and what can be done about it.
func removalState(r *api.PluginRemoval) (text, advice string) {
	waits := RemovalWaits(r.Pods, r.Sandboxes)
	if waits == "" {
		return "no pod needs the CNI plugin any more: run 'tcpilot cni uninstall' again", "'tcpilot cni install' cancels the removal"
	}
	advice = "run 'tcpilot cni uninstall' again later, or cancel the removal with 'tcpilot cni install'"
	if len(r.Pods) > 0 {
		advice = "end these pods, or move them to another node, and " + advice
	}
	return "'tcpilot cni uninstall' waits " + waits, advice
}

// hasPods reports whether the daemon knows pods. A daemon that does not answer, or whose version has no pods,
// counts as one without.
func (a *app) hasPods(ctx context.Context) bool {
	l, err := a.client().Pods(ctx)
	return err == nil && len(l.Pods) > 0
}

func (a *app) completePods(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	l, err := a.client().Pods(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range l.Pods {
		names = append(names, l.Pods[i].Pod)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
