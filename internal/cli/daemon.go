package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/engine"
)

func isNotRunning(err error) bool {
	var e *api.NotRunningError
	return errors.As(err, &e)
}

func (a *app) run() *cobra.Command {
	var o RunOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon in the foreground",
		Long: `Run the daemon: attach the eBPF programs, tune new connections, learn from their
samples, and answer on the socket. It needs root. SIGHUP reads the configuration
again. SIGINT and SIGTERM end the daemon and undo what 'tcpilot detach' undoes. With
--keep-attached, the programs stay in the kernel, where they stop setting anything
when the lease expires, and the next daemon adopts them without a gap.`,
		Example: "  sudo tcpilot run\n  sudo tcpilot run --config ./tcpilot.yaml",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("socket") { // otherwise the configuration decides
				o.Socket = a.socket
			}
			err := a.Run(cmd.Context(), o)
			if console.Interrupted(cmd.Context(), err) {
				return nil
			}
			if err != nil {
				return rootError{err}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Config, "config", "", "configuration `FILE` (default "+config.DefaultFile+" if it exists)")
	f.BoolVar(&o.KeepAttached, "keep-attached", false, "leave programs and policies in the kernel at the end")
	cobra.CheckErr(cmd.MarkFlagFilename("config", "yaml", "yml"))
	return cmd
}

func (a *app) reload() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the daemon read its configuration again",
		Long: `Make the daemon read its configuration again (as SIGHUP does). No connection and
no sample is lost. If the file is not valid, the rules in force stay, the errors are
shown, and the exit status is 1.`,
		Example: "  tcpilot check /etc/tcpilot/tcpilot.yaml && tcpilot reload",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.client().Reload(cmd.Context())
			if err != nil {
				return err
			}
			return console.EmitValue(a.Output, r, a.renderReload)
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) renderReload(w io.Writer, r api.ReloadResult) {
	var changes []string
	for _, c := range []struct {
		what  string
		names []string
	}{{"added", r.Added}, {"removed", r.Removed}, {"changed", r.Changed}} {
		if len(c.names) > 0 {
			changes = append(changes, c.what+" "+strings.Join(c.names, ", "))
		}
	}
	if len(changes) == 0 {
		changes = []string{"nothing changed"}
	}
	fmt.Fprintf(w, "reloaded: %s; %s\n", console.Plural(r.Rules, "rule"), strings.Join(changes, "; "))
	if r.Mode == engine.ModeObserve {
		fmt.Fprintln(w, observeLine)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintln(w, a.Paint.Warn("warning:")+" "+warning)
	}
}

func (a *app) detach() *cobra.Command {
	var o RunOptions
	undo, did := (*api.Client).Detach, "detached: the daemon removes everything from the kernel and ends"
	cmd := &cobra.Command{
		Use:   "detach",
		Short: "Undo everything and end the daemon",
		Long: `Remove every program and policy, undo every setting, and end the daemon. If no
daemon runs, this command removes what an earlier one left in the kernel, and then
needs root. If the daemon has, or had, a configuration file of its own (run
--config), name it: the file says where it listens, and where to look. What was
learned stays on disk.

Running connections get back what they had before rate limits, before adapted values
of delack_max, cwnd_clamp and max_pacing_rate, and before ack_priority, ack_dscp and
notsent_lowat, unless an application or another program has changed it since. They
keep their congestion control, the windows that they began with, mostly RTO_MIN, and
what other fields of a rule's 'set' gave them.

With --pods, only the programs at the network devices of pods are removed, and
devices get back the sizes of packets that they had (BIG TCP). The daemon goes on:
packets of pods take the host's stack until 'tcpilot reload'.
Connections of pods are not interrupted.`,
		Example: "  sudo tcpilot detach\n  sudo tcpilot detach --pods\n  sudo tcpilot detach --config ./tcpilot.yaml   # after kill -9",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Pods {
				undo, did = (*api.Client).DetachPods, "detached: packets of pods take the host's stack until 'tcpilot reload'"
			}
			named := cmd.Flags().Changed("socket")
			if o.Config != "" && !named {
				cfg, err := config.Load(o.Config)
				if err != nil {
					return err
				}
				a.socket = cfg.Socket.Path
			}
			err := undo(a.client(), cmd.Context())
			if isNotRunning(err) {
				if named {
					o.Socket = a.socket
				}
				return a.detachAlone(cmd.Context(), o)
			}
			if err != nil {
				return err
			}
			return a.done(Detached{Daemon: true, Undone: []string{}}, did)
		},
	}
	cmd.Flags().StringVar(&o.Config, "config", "", "configuration `FILE` of the daemon: it says where it listens, or where to look")
	cobra.CheckErr(cmd.MarkFlagFilename("config", "yaml", "yml"))
	a.JSONFlag(cmd, "write JSON: whether a daemon ran, and what was removed if not")
	cmd.Flags().BoolVar(&o.Pods, "pods", false, "only the programs at the devices of pods")
	return cmd
}

func (a *app) detachAlone(ctx context.Context, o RunOptions) error {
	d, err := a.Detach(ctx, o)
	if err != nil {
		return rootError{fmt.Errorf("detach (no daemon runs): %w", err)}
	}
	if len(d.Undone) == 0 {
		d.Undone = []string{}
		return a.done(d, fmt.Sprintf(`nothing to detach: no daemon runs, and nothing to undo was found in %s
if the daemon had another configuration: tcpilot detach --config FILE`, strings.Join(d.Examined, ", ")))
	}
	return a.done(d, "detached what an earlier daemon left behind:\n  "+strings.Join(d.Undone, "\n  "))
}
