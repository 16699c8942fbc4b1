package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitOK         = 0
	ExitError      = 1
	ExitUsage      = 2
	ExitNotRunning = 3 // the daemon is not running
)

// usageError is an error in the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// Usagef returns an error for an invalid command line.
func Usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// Silent is an error whose text was already written.
type Silent struct{ Err error }

func (e Silent) Error() string { return e.Err.Error() }
func (e Silent) Unwrap() error { return e.Err }

// Root makes cmd the root of a command line: arguments are checked, mistyped commands get a
// suggestion, --version prints the version, and Run prints errors.
func Root(cmd *cobra.Command, version string) {
	cmd.Version = version // cobra writes it; with SetVersionTemplate, the linker would keep the methods of all types for text/template
	cmd.Args = rootArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2 // the edit distance
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
}

func rootArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg := fmt.Sprintf("unknown command %q", args[0])
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		slices.Sort(s) // cobra returns them in no fixed order
		msg += ": did you mean " + strings.Join(s, " or ") + "?"
	}
	return Usagef("%s", msg)
}

// Args accepts from least to most arguments; the names of the arguments are for the error.
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, a []string) error {
		switch {
		case len(a) < least:
			return Usagef("%s is missing", what)
		case len(a) > most && most == 0:
			return Usagef("%q: no argument is taken", a[0])
		case len(a) > most:
			return Usagef("%q: one %s is enough", a[most], what)
		}
		return nil
	}
}

// Exclusive refuses a command line with more than one of these flags. Call it after cmd.Args is set.
func Exclusive(cmd *cobra.Command, flags ...string) {
	cmd.MarkFlagsMutuallyExclusive(flags...) // for completion: its error would not be one of usage
	args := cmd.Args
	cmd.Args = func(cmd *cobra.Command, a []string) error {
		var given []string
		for _, name := range flags {
			if cmd.Flags().Changed(name) {
				given = append(given, "--"+name)
			}
		}
		if len(given) > 1 {
			return Usagef("%s exclude each other: use one of them", strings.Join(given, " and "))
		}
		if args == nil {
			return nil
		}
		return args(cmd, a)
	}
}

// Run runs the command line args (without the program's name), writes its error to
// stderr, and returns the exit code. explain returns the exit code of an error and a hint,
// which may be empty; explain may be nil.
func Run(ctx context.Context, root *cobra.Command, stderr io.Writer, args []string, explain func(error) (code int, hint string)) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if Interrupted(ctx, err) {
		return ExitError // the error was already written
	}
	var (
		quiet Silent
		usage usageError
	)
	if !errors.As(err, &quiet) {
		fmt.Fprintf(stderr, "tcpilot: %v\n", err)
	}
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
		return ExitUsage
	}
	code, hint := ExitError, ""
	if explain != nil {
		code, hint = explain(err)
	}
	if hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
	return code
}

// Interrupted reports whether err only says that ctx ended, for example by Ctrl-C.
func Interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}
