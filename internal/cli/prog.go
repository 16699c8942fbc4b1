package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/metrics"
)

func (a *app) prog() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "prog",
		Short:      "Show, load and unload your own sock_ops programs",
		SuggestFor: []string{"load", "unload", "loaded"},
		Long: `Your own eBPF programs of the type sock_ops, attached to a cgroup beside tcpilot's.
docs/own-programs.md has an example.

A congestion control in BPF is loaded with 'tcpilot cc load' instead.`,
		Example: `  tcpilot prog list
  tcpilot prog show my-iw
  sudo tcpilot prog load my-iw ./my_iw.bpf.o --cgroup /sys/fs/cgroup/web
  sudo tcpilot prog unload my-iw`,
	}
	console.Group(cmd)
	cmd.AddCommand(a.progList(), a.progShow(), a.progLoad(), a.progUnload())
	return cmd
}

func (a *app) progList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the loaded programs",
		Long:    "List the programs that 'tcpilot prog load' attached. What tcpilot's own programs cost\nis in 'tcpilot status'; congestion controls are in 'tcpilot cc list'.",
		Example: "  tcpilot prog list\n  tcpilot prog list --json | jq '.programs[].cgroup'",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, api.ResourceLoaded, func(w io.Writer, l api.ProgramList) {
				if len(l.Programs) == 0 {
					fmt.Fprintln(w, "none: see 'tcpilot prog load --help'")
					return
				}
				a.renderLoaded(w, l.Programs, "")
			})
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) progShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one of your programs, with its cost",
		Long: `Show what 'tcpilot prog load' attached: its object file, its cgroup, and how often and
how long its programs ran, if the kernel counts that.`,
		Example:           "  tcpilot prog show my-iw",
		Args:              console.Args(1, 1, "NAME"),
		ValidArgsFunction: a.completeLoaded,
		RunE: func(cmd *cobra.Command, argv []string) error {
			return show(cmd.Context(), a, api.LoadedResource(argv[0]), a.renderProgram)
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) renderProgram(w io.Writer, l api.Loaded) {
	fmt.Fprintf(w, "%s, your own: attached\n\n", a.Paint.Bold(l.Name))
	writeDetail(w, "file", "%s", l.File)
	writeDetail(w, "cgroup", "%s", l.Cgroup)
	writeDetail(w, "since", "%s", fmtAgo(a.Now(), l.Since))
	var programs []metrics.ProgramStats
	for _, p := range l.Programs {
		programs = append(programs, p.ProgramStats)
	}
	if len(programs) > 0 {
		a.renderPrograms(w, programs)
	}
}

func (a *app) progLoad() *cobra.Command {
	var r api.LoadRequest
	cmd := &cobra.Command{
		Use:   "load NAME FILE.o --cgroup DIRECTORY",
		Short: "Attach your own program to a cgroup",
		Long: `Attach the sock_ops program of your own eBPF object, as NAME, to a cgroup beside
tcpilot's. The daemon reads the file, and refuses one that does not have exactly one
program, of this type; for a congestion control see 'tcpilot cc load'. The program
stays until 'tcpilot prog unload', 'tcpilot detach', a normal end of the daemon, or
a reboot. If the daemon is killed, or run with --keep-attached, the program stays.`,
		Example: "  sudo tcpilot prog load my-iw ./my_iw.bpf.o --cgroup /sys/fs/cgroup/system.slice/nginx.service",
		Args:    console.Args(2, 2, "NAME or FILE.o"),
		ValidArgsFunction: func(_ *cobra.Command, argv []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(argv) == 1 {
				return []string{"o"}, cobra.ShellCompDirectiveFilterFileExt
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, argv []string) (err error) {
			if r.Cgroup == "" {
				return console.Usagef("--cgroup is missing: name the cgroup v2 directory to attach to")
			}
			r.Name = argv[0]
			if r.File, err = fileArg(argv[1]); err != nil {
				return err
			}
			if r.Cgroup, err = fileArg(r.Cgroup); err != nil {
				return err
			}
			l, err := a.client().Load(cmd.Context(), r)
			if err != nil {
				return err
			}
			return a.done(l, fmt.Sprintf("loaded %s: %s on %s", l.Name, fmtPrograms(l.Programs), l.Cgroup))
		},
	}
	cmd.Flags().StringVar(&r.Cgroup, "cgroup", "", "cgroup v2 `DIRECTORY` to attach to")
	cobra.CheckErr(cmd.MarkFlagDirname("cgroup"))
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

func (a *app) progUnload() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "unload NAME",
		Short:             "Detach a program from its cgroup",
		Long:              "Detach what 'tcpilot prog load' attached, by the name that 'tcpilot prog list' shows.",
		Example:           "  sudo tcpilot prog unload my-iw",
		Args:              console.Args(1, 1, "NAME"),
		ValidArgsFunction: a.completeLoaded,
		RunE: func(cmd *cobra.Command, argv []string) error {
			if err := a.client().Unload(cmd.Context(), argv[0]); err != nil {
				return err
			}
			return a.done(struct{}{}, "unloaded "+argv[0])
		},
	}
	a.JSONFlag(cmd, jsonDoc)
	return cmd
}

// completeLoaded completes the names of loaded programs.
func (a *app) completeLoaded(cmd *cobra.Command, argv []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	if l, err := a.client().Loaded(ctx); err == nil && len(argv) == 0 {
		for _, p := range l.Programs {
			names = append(names, p.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) renderLoaded(w io.Writer, l []api.Loaded, indent string) {
	t := console.NewTable("NAME", "PROGRAMS", "CGROUP", "FILE", "SINCE")
	for _, p := range l {
		t.Row(p.Name, fmtPrograms(p.Programs), p.Cgroup, p.File, fmtAgo(a.Now(), p.Since))
	}
	t.Write(w, a.Paint, indent)
}

func fmtPrograms(programs []api.Program) string {
	var parts []string
	for _, p := range programs {
		parts = append(parts, fmt.Sprintf("%s (%s, id %d)", p.Name, p.Type, p.ID))
	}
	return strings.Join(parts, ", ")
}
