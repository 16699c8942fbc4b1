package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

func (a *app) check() *cobra.Command {
	strict := false
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file without using it",
		Long: `Check a configuration file as 'tcpilot reload' would, without using it: unknown
keys, bad prefixes, values out of range, and rules that can never match. Every
error is written as FILE:LINE:COLUMN: text, and the exit status is 1.

What the file asks for and this host does not have now (a congestion control, a
cgroup, a network namespace, a group) is a warning; with --strict it is an error.
Values are shown as the file has them; "learn auto" is a choice of those that the
daemon finds. A note says what packets bypass if host routing is on
(pods.host_routing).

It needs neither root nor a running daemon.`,
		Example: "  tcpilot check /etc/tcpilot/tcpilot.yaml\n  tcpilot check --strict ./tcpilot.yaml",
		Args:    console.Args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, argv []string) error {
			checked, err := a.Check(cmd.Context(), argv[0])
			if err != nil {
				return a.checkFailed(argv[0], err)
			}
			if strict && len(checked.Warnings) > 0 {
				var errs []error
				for _, warning := range checked.Warnings {
					errs = append(errs, &yamlfile.Error{File: checked.File, Problem: warning})
				}
				return a.checkFailed(checked.File, errors.Join(errs...))
			}
			return console.EmitValue(a.Output, checked, func(w io.Writer, c Checked) {
				fmt.Fprintf(w, "ok: %s\n", console.Plural(len(c.Rules), "rule"))
				for _, warning := range c.Warnings {
					fmt.Fprintf(w, "%s %s\n", a.Paint.Warn("warning:"), warning)
				}
				for _, note := range c.Bypassed {
					fmt.Fprintf(w, "note: %s\n", note)
				}
				if len(c.Rules) > 0 {
					fmt.Fprintln(w)
					a.renderRules(w, c.Rules, false)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors")
	a.JSONFlag(cmd, "write JSON: the rules, or the mistakes")
	return cmd
}

// refused is a configuration with mistakes.
type refused struct {
	File   string           `json:"file"`
	Errors []yamlfile.Error `json:"errors"`
}

// checkFailed writes every error on a line of its own, as compilers do.
func (a *app) checkFailed(file string, err error) error {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	result := refused{File: file}
	for _, e := range errs {
		mistake := &yamlfile.Error{File: file, Problem: e.Error()}
		errors.As(e, &mistake)
		result.Errors = append(result.Errors, *mistake)
		if !a.JSON {
			fmt.Fprintln(a.Stderr, e)
		}
	}
	if a.JSON {
		if err := a.PrintJSON(result); err != nil {
			return err
		}
	}
	return console.Silent{Err: err}
}
