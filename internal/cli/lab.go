package cli

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// The lab is a program of its own, tcpilot-lab: its traffic generators and emulated links
// are not part of a daemon that runs as root. These commands execute it.

func (a *app) lab() *cobra.Command {
	return a.handOver(&cobra.Command{
		Use:   "lab COMMAND",
		Short: "Measure what tcpilot does, on emulated networks on this machine",
		Long: `Experiments: networks of namespaces on this machine, links that delay, lose and
queue, real traffic, and several subjects that take turns: the kernel's default,
each congestion control, initial windows by route, tcpilot, bpftune if it is
installed, or any command that starts a tuner.

It is the program tcpilot-lab, which is installed beside tcpilot or is in PATH.
'tcpilot lab --help' lists its commands.`,
		Example: `  tcpilot lab list
  sudo tcpilot lab run loss --quick`,
	})
}

func (a *app) demo() *cobra.Command {
	return a.handOver(&cobra.Command{
		Use:   "demo",
		Short: "Show what tcpilot does, on a lossy link between namespaces",
		Long: `Show in a minute what tcpilot does: three network namespaces, a link that loses
packets, and bulk connections one after the other, without tcpilot and with it. It
needs root. Nothing else on this machine is changed, and all is removed at the end.

It is the command demo of tcpilot-lab, which is installed beside tcpilot or is in
PATH.`,
		Example: "  sudo tcpilot demo",
	}, "demo")
}

// handOver makes cmd execute tcpilot-lab with first and all arguments that follow.
func (a *app) handOver(cmd *cobra.Command, first ...string) *cobra.Command {
	with := func(args []string) []string { return append(first[:len(first):len(first)], args...) }
	cmd.DisableFlagParsing = true // all flags belong to tcpilot-lab
	cmd.RunE = func(_ *cobra.Command, args []string) error { return a.ExecLab(with(args)) }
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		ask := append([]string{cobra.ShellCompRequestCmd}, with(append(args[:len(args):len(args)], word))...)
		out, err := a.LabOutput(cmd.Context(), ask)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return completions(out)
	}
	return cmd
}

// completions reads the completions of a program that uses cobra: one on each line, and the
// directive on the last line.
func completions(out []byte) ([]string, cobra.ShellCompDirective) {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	last := len(lines) - 1
	directive, err := strconv.Atoi(strings.TrimPrefix(lines[last], ":"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:last], cobra.ShellCompDirective(directive)
}
