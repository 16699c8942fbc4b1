package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
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
again; SIGINT and SIGTERM end it, and then everything is as it was before, unless
--keep-attached is given: the programs then stay in the kernel, where the policies
run out with their lease, and the next daemon adopts them without a gap.`,
		Example: "  sudo tcpilot run\n  sudo tcpilot run --config ./tcpilot.yaml",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("socket") { // else as the configuration says
				o.Socket = a.socket
			}
			err := a.Run(cmd.Context(), o)
			if console.Interrupted(cmd.Context(), err) {
				return nil
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Config, "config", "", "configuration `file` (default "+DefaultConfig+" if it exists)")
	f.BoolVar(&o.KeepAttached, "keep-attached", false, "leave programs and policies in the kernel at the end")
	cobra.CheckErr(cmd.MarkFlagFilename("config", "yaml", "yml"))
	return cmd
}

func (a *app) reload() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Make the daemon read its configuration again",
		Long: `Make the daemon read its configuration again (as SIGHUP does). No connection and
no sample is lost. When the file is not valid the rules in force stay, the errors
are shown, and the exit status is 1.`,
		Example: "  tcpilot check /etc/tcpilot/tcpilot.yaml && tcpilot reload",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.client().Reload(cmd.Context())
			if err != nil {
				return err
			}
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
			out := fmt.Sprintf("reloaded: %s; %s\n", console.Plural(r.Rules, "rule"), strings.Join(changes, "; "))
			if r.Mode == engine.ModeObserve {
				out += observeLine + "\n"
			}
			for _, w := range r.Warnings {
				out += a.Paint.Warn("warning:") + " " + w + "\n"
			}
			return a.Print([]byte(out))
		},
	}
}

func (a *app) detach() *cobra.Command {
	var o RunOptions
	cmd := &cobra.Command{
		Use:   "detach",
		Short: "Take everything back and end the daemon",
		Long: `Take back every program, policy and setting, and end the daemon. When it does not
run, what an earlier one left behind is taken back by this command, which then
needs root. What was learned stays on disk.`,
		Example: "  sudo tcpilot detach",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := a.client().Detach(cmd.Context())
			if isNotRunning(err) {
				o.Socket = a.socket
				return a.detachAlone(cmd.Context(), o)
			}
			if err != nil {
				return err
			}
			return a.Print([]byte("detached: the daemon takes everything back and ends\n"))
		},
	}
	cmd.Flags().StringVar(&o.Config, "config", "", "configuration `file`, where no daemon runs")
	cobra.CheckErr(cmd.MarkFlagFilename("config", "yaml", "yml"))
	return cmd
}

func (a *app) detachAlone(ctx context.Context, o RunOptions) error {
	d, err := a.Detach(ctx, o)
	if err != nil {
		return fmt.Errorf("detach (no daemon runs): %w", err)
	}
	if len(d.Undone) == 0 {
		return a.Print([]byte("nothing to detach: no daemon runs, and none left anything behind\n"))
	}
	return a.Print([]byte("detached what an earlier daemon left behind:\n  " + strings.Join(d.Undone, "\n  ") + "\n"))
}

func (a *app) load() *cobra.Command {
	var r api.LoadRequest
	cmd := &cobra.Command{
		Use:   "load OBJECT.o --cgroup PATH",
		Short: "Attach your own sock_ops program to a cgroup",
		Long: `Attach the sock_ops programs of your own eBPF object to a cgroup, beside tcpilot's.
The daemon reads the file, and refuses one that has programs of another type. The
programs stay until 'tcpilot unload' or the end of the daemon.`,
		Example: "  tcpilot load ./my_iw.bpf.o --cgroup /sys/fs/cgroup/system.slice/nginx.service --name my-iw",
		Args:    console.Args(1, 1, "OBJECT.o"),
		RunE: func(cmd *cobra.Command, argv []string) (err error) {
			if r.Cgroup == "" {
				return console.Usagef("--cgroup is missing: which cgroup v2 directory shall it act on?")
			}
			if r.Object, err = fileArg(argv[0]); err != nil {
				return err
			}
			if r.Cgroup, err = fileArg(r.Cgroup); err != nil {
				return err
			}
			l, err := a.client().Load(cmd.Context(), r)
			if err != nil {
				return err
			}
			return a.Print(fmt.Appendf(nil, "loaded %s: %s on %s\n", l.Name, programWords(l.Programs), l.Cgroup))
		},
	}
	cmd.Flags().StringVar(&r.Cgroup, "cgroup", "", "cgroup v2 `directory` to attach to")
	cmd.Flags().StringVar(&r.Name, "name", "", "`name` to unload it by (default: the file's, without .bpf.o)")
	cobra.CheckErr(cmd.MarkFlagDirname("cgroup"))
	return cmd
}

func (a *app) unload() *cobra.Command {
	return &cobra.Command{
		Use:     "unload NAME",
		Short:   "Detach your own program",
		Long:    "Detach what 'tcpilot load' attached, by the name that 'tcpilot loaded' shows.",
		Example: "  tcpilot unload my-iw",
		Args:    console.Args(1, 1, "NAME"),
		ValidArgsFunction: func(cmd *cobra.Command, argv []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
			defer cancel()
			if l, err := a.client().Loaded(ctx); err == nil && len(argv) == 0 {
				for _, p := range l {
					names = append(names, p.Name)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, argv []string) error {
			if err := a.client().Unload(cmd.Context(), argv[0]); err != nil {
				return err
			}
			return a.Print([]byte("unloaded " + argv[0] + "\n"))
		},
	}
}

func (a *app) loaded() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "loaded",
		Short:   "Show your own programs",
		Long:    "Show the programs that 'tcpilot load' attached.",
		Example: "  tcpilot loaded",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, api.ResourceLoaded, func(w io.Writer, l []api.Loaded) {
				if len(l) == 0 {
					fmt.Fprintln(w, "none: see 'tcpilot load --help'")
					return
				}
				a.renderLoaded(w, l, "")
			})
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) renderLoaded(w io.Writer, l []api.Loaded, indent string) {
	t := console.NewTable("NAME", "PROGRAMS", "CGROUP", "OBJECT", "SINCE")
	for _, p := range l {
		t.Row(p.Name, programWords(p.Programs), p.Cgroup, p.Object, fmtAgo(a.Now(), p.Since))
	}
	t.Write(w, a.Paint, indent)
}

func programWords(programs []api.Program) string {
	var words []string
	for _, p := range programs {
		words = append(words, fmt.Sprintf("%s (%s, id %d)", p.Name, p.Type, p.ID))
	}
	return strings.Join(words, ", ")
}

func (a *app) version() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  console.Args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			type version struct {
				Version string `json:"version"`
			}
			return console.EmitValue(a.Output, version{a.Version}, func(w io.Writer, v version) {
				fmt.Fprintf(w, "tcpilot %s\n", v.Version)
			})
		},
	}
	a.JSONFlag(cmd, "write JSON")
	return cmd
}
