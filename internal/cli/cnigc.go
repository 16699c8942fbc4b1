package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/console"
)

// CNIAttachment is a pod's interface that cni gc did not keep without a doubt.
type CNIAttachment struct {
	Container string   `json:"container_id"`
	Interface string   `json:"interface"`
	Network   string   `json:"network"`
	Pod       string   `json:"pod,omitempty"`
	NetNS     string   `json:"netns"`
	Addresses []string `json:"addresses,omitempty"`
	Why       string   `json:"why"` // it is gone, or why that is not certain
	Removed   bool     `json:"removed"`
	Error     string   `json:"error,omitempty"`
}

// CNILease is an address that host-local keeps for a container of which nothing is known.
type CNILease struct {
	Network   string `json:"network"`
	Address   string `json:"address"`
	Container string `json:"container_id"`
	File      string `json:"file"`
}

// CNICollected is what cni gc found and removed.
type CNICollected struct {
	DryRun  bool            `json:"dry_run"`
	Gone    []CNIAttachment `json:"gone"`
	Unclear []CNIAttachment `json:"unclear"`
	Kept    int             `json:"kept"`
	Leases  []CNILease      `json:"leases"`
	// Uninstalled is what was removed of the plugin, "removed /opt/cni/bin/tcpilot-cni": its removal has waited for pods.
	Uninstalled []string `json:"uninstalled,omitempty"`
}

func (c *CNICollected) failed() (n int) {
	for i := range c.Gone {
		if c.Gone[i].Error != "" {
			n++
		}
	}
	return n
}

// collectInterval is the pause of cni gc --follow. What a pod has left takes nothing away but its address until then.
const collectInterval = 5 * time.Minute

func (a *app) cniCollect() *cobra.Command {
	var o CNIOptions
	follow := false
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what pods have left whose end the plugins were not told of",
		Long: `Find pods that are gone although their DEL was missed, because the node crashed, or
the container runtime or a plugin was killed, and execute that DEL: all plugins of
the pod's network release what the pod has left, such as its address, as they
do at a pod's regular end. This is for container runtimes that do not ask
plugins for it (GC), such as containerd 1.6 and 2.

A pod is gone if the path of its network namespace does not exist any more or leads
to another one, and if neither a process nor a mount nor the host's end of its
interface shows that the namespace still exists. Pods of which this is not certain,
and those added less than --older-than ago, are kept and listed. Pods are known
from the records of tcpilot-cni and from the cache of the container runtime, which also
has the configuration of their ADD. Networks without tcpilot-cni are left alone.

Addresses that host-local keeps for containers that neither of these two knows, and
that no interface has, are listed. They are not released.

If 'cni uninstall' has waited for these pods, and no other pod needs the plugin, the
command finishes the removal.

No daemon is needed. Run the command where the container runtime runs: with its
processes and file systems, and in its network namespace. With --follow, it repeats
this every 5 min until SIGINT or SIGTERM, and writes only what it removes, and
failures.`,
		Example: "  sudo tcpilot cni gc --dry-run\n  sudo tcpilot cni gc\n  sudo tcpilot cni gc --json | jq -r '.gone[] | select(.removed) | .addresses[]'",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.OlderThan < 0 {
				return console.Usagef("--older-than is %v: it must not be negative", o.OlderThan)
			}
			if follow {
				return a.followCollect(cmd.Context(), o)
			}
			return a.collectCNI(cmd.Context(), o)
		},
	}
	nodeFlags(cmd, &o)
	f := cmd.Flags()
	f.StringVar(&o.CacheDir, "cache-dir", "/var/lib/cni", "`DIR` of the container runtime's cache of ADDs")
	cobra.CheckErr(cmd.MarkFlagDirname("cache-dir"))
	f.DurationVar(&o.OlderThan, "older-than", time.Minute, "keep pods that were added less than this `DURATION` ago")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("older-than", cobra.FixedCompletions([]string{"10s", "1m", "1h"}, cobra.ShellCompDirectiveNoFileComp)))
	f.BoolVar(&o.DryRun, "dry-run", false, "remove nothing: write what would be removed")
	f.BoolVar(&follow, "follow", false, "repeat it every 5 min")
	a.JSONFlag(cmd, "write JSON: what was found and removed")
	console.Exclusive(cmd, "follow", "dry-run")
	return cmd
}

// collectCNI collects once. It writes each removal when it is done, because the plugins of many pods take long.
func (a *app) collectCNI(ctx context.Context, o CNIOptions) error {
	c, err := a.CollectCNI(ctx, o, func(one CNIAttachment) {
		if !a.JSON {
			fmt.Fprintln(a.Stdout, collectedLine(&one, o.DryRun))
		}
	})
	if err != nil {
		return rootError{err}
	}
	if err := console.EmitValue(a.Output, c, a.renderCollected); err != nil {
		return err
	}
	if n := c.failed(); n > 0 {
		return fmt.Errorf("%s not removed: what is left of it is tried again by the next 'tcpilot cni gc'", console.Plural(n, "attachment"))
	}
	return nil
}

func collectedLine(one *CNIAttachment, dryRun bool) string {
	did := "removed"
	switch {
	case one.Error != "":
		did = "not removed:"
	case dryRun:
		did = "would remove"
	}
	line := did + " " + attachmentName(one) + ": " + one.Why
	if one.Error != "" {
		line += ": " + one.Error
	}
	return console.Clean(line)
}

func uninstalledLine(what string) string {
	return console.Clean(what + ", because the plugin is uninstalled, and no pod needs it any more")
}

// attachmentName is the pod with what identifies its interface: shop/web-1 (container 4f1c0b6d1f70, eth0, network mynet, 10.1.0.5).
func attachmentName(one *CNIAttachment) string {
	more := append([]string{one.Interface, "network " + one.Network}, one.Addresses...)
	if one.Pod == "" {
		return fmt.Sprintf("container %s (%s)", one.Container, strings.Join(more, ", "))
	}
	return fmt.Sprintf("%s (container %s, %s)", one.Pod, one.Container, strings.Join(more, ", "))
}

func (a *app) renderCollected(w io.Writer, c CNICollected) {
	for i := range c.Unclear {
		one := &c.Unclear[i]
		fmt.Fprintf(w, "kept %s\n", console.Clean(attachmentName(one)+": "+one.Why))
	}
	for _, l := range c.Leases {
		fmt.Fprintf(w, "%s %s\n", a.Paint.Warn("warning:"), console.Clean(fmt.Sprintf(
			"host-local keeps %s of network %s for container %s, of which nothing is known: if the container runtime does not have it either, remove %s", l.Address, l.Network, l.Container, l.File)))
	}
	for _, what := range c.Uninstalled {
		fmt.Fprintln(w, uninstalledLine(what))
	}
	if len(c.Gone) == 0 && len(c.Uninstalled) == 0 {
		fmt.Fprintf(w, "nothing to remove; %s of pods that exist\n", console.Plural(c.Kept, "attachment"))
	}
}

// followCollect collects again and again. A failure is written when it differs from the one before.
func (a *app) followCollect(ctx context.Context, o CNIOptions) error {
	for last := ""; ; {
		c, err := a.CollectCNI(ctx, o, func(CNIAttachment) {})
		if ctx.Err() != nil {
			return nil
		}
		var failures []string
		if err != nil {
			failures = []string{err.Error()}
		}
		for i := range c.Gone {
			if line := collectedLine(&c.Gone[i], false); c.Gone[i].Error != "" {
				failures = append(failures, line)
			} else if !a.JSON {
				fmt.Fprintln(a.Stdout, line)
			}
		}
		for _, what := range c.Uninstalled {
			if !a.JSON {
				fmt.Fprintln(a.Stdout, uninstalledLine(what))
			}
		}
		if a.JSON && len(c.Gone)+len(c.Uninstalled) > len(failures) {
			if err := a.PrintJSON(c); err != nil {
				return err
			}
		}
		if text := strings.Join(failures, "\n"); text != last {
			if last = text; text != "" {
				fmt.Fprintln(a.Stderr, text+"; trying again")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(collectInterval):
		}
	}
}
