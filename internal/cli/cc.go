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
)

func (a *app) cc() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cc",
		Short: "Show, load and unload congestion controls in BPF",
		Long: `Congestion controls in BPF: those of tcpilot (tcpilot_*), for every kernel that
accepts them, and your own. The key congestion_controls of the configuration selects
which of tcpilot's are loaded; a loaded one can be an arm like the kernel's.

docs/congestion-controls.md says what each is written from and where it departs.

Your own programs of the type sock_ops are loaded with 'tcpilot prog load' instead.`,
		Example: `  tcpilot cc list
  tcpilot cc show tcpilot_bbr3
  sudo tcpilot cc load mine ./mine.bpf.o
  sudo tcpilot cc unload mine`,
	}
	console.Group(cmd)
	cmd.AddCommand(a.ccList(), a.ccShow(), a.ccLoad(), a.ccUnload(), a.ccHold())
	return cmd
}

func (a *app) ccList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tcpilot's congestion controls, and your own",
		Long: `List the congestion controls of tcpilot, and your own.

  STATE  loaded: connections may get it; available: this kernel accepts it; absent:
         this kernel does not accept it (see WHY); elsewhere: another process, for
         example another tcpilot, has loaded it, and it is used unchanged
  ARM    auto: included in arms: auto; ecn: the same, on paths where ECN has proved
         to work; by name: only in rules that name it
  CONNS  sockets that use it now`,
		Example: "  tcpilot cc list\n  tcpilot cc list --json | jq -r '.congestion_controls[].name'",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, api.ResourceControls, a.renderControls)
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) renderControls(w io.Writer, l api.ControlList) {
	t := console.NewTable("NAME", "STATE", "WANTED", "ARM", ">CONNS", "VERSION", "SOURCE", "WHY")
	for _, c := range l.Controls {
		conns := console.None
		if c.State == "loaded" {
			conns = fmt.Sprint(c.Connections)
		}
		t.Row(c.Name, c.State, yesNo(c.Wanted), armWord(&c), conns, c.Version, c.Source, c.Why)
	}
	t.Write(w, a.Paint, "")
}

// armWord says in which rules a loaded control is an arm.
func armWord(c *api.CongestionControl) string {
	switch {
	case !c.Auto && c.NeedsECN:
		return "by name, ecn"
	case !c.Auto:
		return "by name"
	case c.NeedsECN:
		return "ecn"
	}
	return "auto"
}

func (a *app) ccShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one congestion control, with the cost of its programs",
		Long: `Show a congestion control: what it was written from, its version, whether this kernel
accepts it, which rules name it, how many sockets use it, and how often and how long
its programs ran, if the kernel counts that.`,
		Example:           "  tcpilot cc show tcpilot_bbr3",
		Args:              console.Args(1, 1, "NAME"),
		ValidArgsFunction: a.completeControls(func(*api.CongestionControl) bool { return true }),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return show(cmd.Context(), a, api.ControlResource(argv[0]), a.renderControl)
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) renderControl(w io.Writer, c api.CongestionControl) {
	line := func(name, format string, args ...any) { writeDetail(w, name, format, args...) }
	kind := "tcpilot's own"
	if c.User {
		kind = "your own"
	}
	fmt.Fprintf(w, "%s, %s: %s\n\n", a.Paint.Bold(c.Name), kind, c.State)
	if c.Why != "" {
		line("why", "%s", a.Paint.Warn(c.Why))
	}
	line("source", "%s", c.Source)
	version := c.Version
	if c.Outdated {
		version += ": the daemon has another one, which it loads at its next reload"
	}
	line("version", "%s", version)
	line("wanted", "%s", wantedWord(&c))
	line("arm", "%s", armWord(&c))
	if c.State == "loaded" {
		line("connections", "%d", c.Connections)
	}
	if !c.User {
		line("departures", "from its source: docs/congestion-controls.md")
	}
	if len(c.Programs) > 0 {
		a.renderPrograms(w, c.Programs)
	}
}

// writeDetail writes one line of what show commands show.
func writeDetail(w io.Writer, name, format string, args ...any) {
	fmt.Fprintf(w, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
}

func wantedWord(c *api.CongestionControl) string {
	switch {
	case len(c.Rules) > 0:
		return "yes, by " + console.Plural(len(c.Rules), "rule") + ": " + strings.Join(c.Rules, ", ")
	case c.Wanted:
		return "yes, by congestion_controls"
	}
	return "no"
}

func (a *app) ccLoad() *cobra.Command {
	var r api.LoadControlRequest
	cmd := &cobra.Command{
		Use:   "load NAME [FILE.o]",
		Short: "Load your own, or one of tcpilot's until the next reload",
		Long: `Load your own congestion control from an eBPF object, as NAME: one struct
tcp_congestion_ops in section ".struct_ops.link". The daemon reads the file, checks
it, and tests it with connections in a separate network namespace before any other
connection can get it; that takes seconds. A loaded control of the same name is
replaced in place; its connections continue with the old version. The control stays
until 'tcpilot cc unload', 'tcpilot detach', a normal end of the daemon, or a reboot.

Without FILE, one of tcpilot's own is loaded until the next reload. To load it
permanently, name it in congestion_controls of the configuration.`,
		Example: `  sudo tcpilot cc load mine ./mine.bpf.o
  sudo tcpilot cc load mine ./mine.bpf.o --auto
  sudo tcpilot cc load tcpilot_cubic`,
		Args:              console.Args(1, 2, "NAME"),
		ValidArgsFunction: a.completeLoad,
		RunE: func(cmd *cobra.Command, argv []string) (err error) {
			if len(argv) == 2 {
				if r.File, err = fileArg(argv[1]); err != nil {
					return err
				}
			}
			r.Name = argv[0]
			c, err := a.client().LoadControl(cmd.Context(), r)
			if err != nil {
				return err
			}
			return a.done(c, fmt.Sprintf("loaded %s (%s), version %s, arm: %s", c.Name, c.Source, c.Version, armWord(&c)))
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	cmd.Flags().BoolVar(&r.Auto, "auto", false, "make it an arm of every rule with arms: auto, not only of rules that name it")
	return cmd
}

func (a *app) completeLoad(cmd *cobra.Command, argv []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(argv) == 1 {
		return []string{"o"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return a.completeControls(func(c *api.CongestionControl) bool { return c.State == "available" })(cmd, argv, word)
}

func (a *app) ccUnload() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unload NAME",
		Short: "Unload one from the kernel",
		Long: `Unload a congestion control: remove it first from the policies of all paths, then
from the kernel's list. Connections that use it keep it until they end. If a rule
names it, it is not unloaded: change the rule first.`,
		Example:           "  sudo tcpilot cc unload mine",
		Args:              console.Args(1, 1, "NAME"),
		ValidArgsFunction: a.completeControls(func(c *api.CongestionControl) bool { return c.State == "loaded" }),
		RunE: func(cmd *cobra.Command, argv []string) error {
			u, err := a.client().UnloadControl(cmd.Context(), argv[0])
			if err != nil {
				return err
			}
			out := "unloaded " + argv[0]
			if u.Connections > 0 {
				out += fmt.Sprintf(": %s keep it to their end", console.Plural(u.Connections, "connection"))
			}
			return a.done(u, out)
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) ccHold() *cobra.Command {
	return &cobra.Command{
		Use:   "hold NAME",
		Short: "Load one of tcpilot's without a daemon, until interrupted",
		Long: `Load one of tcpilot's congestion controls into the kernel without a daemon, until
Ctrl-C or SIGTERM. Meanwhile applications and sysctls (net.ipv4.tcp_congestion_control)
can choose it, to compare it with others. Connections that have it at the end keep it.
If it is loaded already, for example by a daemon, that one is left as it is.`,
		Example: "  sudo tcpilot cc hold tcpilot_bbr3",
		Args:    console.Args(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, argv []string) error {
			release, err := a.Hold(argv[0])
			if err != nil {
				return rootError{err}
			}
			err = a.Print([]byte("holding " + argv[0] + " until interrupted\n"))
			if err == nil {
				<-cmd.Context().Done()
			}
			return errors.Join(err, release())
		},
	}
}

// done reports success, as text or as the daemon's JSON answer.
func (a *app) done(answer any, line string) error {
	if !a.JSON {
		return a.Print([]byte(line + "\n"))
	}
	return a.PrintJSON(answer)
}

// completeControls completes the names of the controls that pass a filter.
func (a *app) completeControls(take func(*api.CongestionControl) bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, argv []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		if l, err := a.client().Controls(ctx); err == nil && len(argv) == 0 {
			for i := range l.Controls {
				if c := &l.Controls[i]; take(c) {
					names = append(names, c.Name)
				}
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
