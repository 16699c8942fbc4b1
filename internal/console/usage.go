package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	Group(cmd)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{flagError(err)} })
}

// flagError says what a flag takes if its value is wrong.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag, want := invalid.GetFlag(), ""
	switch flag.Value.Type() {
	case "uint16":
		want = "want a whole number from 0 to 65535"
	case "uint", "uint64":
		want = "want a whole number, 0 or more"
	case "int":
		want = "want a whole number"
	case "duration":
		want = "want a number and a unit, such as 500ms, 5s or 1h30m"
	case "bool":
		want = "want true or false"
	default:
		return fmt.Errorf("--%s: %w", flag.Name, errors.Unwrap(invalid))
	}
	if errors.Is(invalid, strconv.ErrRange) && flag.Value.Type() != "uint16" {
		want = "it is too large"
	}
	return fmt.Errorf("--%s %q: %s", flag.Name, invalid.GetValue(), want)
}

// Group makes cmd a command that only has others: without arguments it shows its help.
func Group(cmd *cobra.Command) {
	cmd.Args = groupArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2 // the edit distance
}

func groupArgs(cmd *cobra.Command, args []string) error {
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

// checkBuiltins makes the commands that cobra adds, help and completion, refuse what does not exist.
func checkBuiltins(root *cobra.Command, args []string) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, a []string) error {
				// The words after a command without commands of its own are arguments, of which it has the help.
				if found, rest, err := root.Find(a); err == nil && len(rest) > 0 && found.HasSubCommands() {
					return groupArgs(found, rest)
				}
				return nil
			}
		case "completion":
			Group(cmd)
			for _, shell := range cmd.Commands() {
				shell.Args = Args(0, 0, "")
			}
		}
	}
}

// unquoteUsage removes the quotes of what flags take from their descriptions, which completion shows as they are.
func unquoteUsage(cmd *cobra.Command) {
	unquote := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	cmd.PersistentFlags().VisitAll(unquote)
	cmd.Flags().VisitAll(unquote)
	for _, sub := range cmd.Commands() {
		unquoteUsage(sub)
	}
}

// Run runs the command line args (without the program's name), writes its error to
// stderr, and returns the exit code. explain returns the exit code of an error and a hint,
// which may be empty; explain may be nil.
func Run(ctx context.Context, root *cobra.Command, stderr io.Writer, args []string, explain func(error) (code int, hint string)) int {
	root.SetArgs(args)
	checkBuiltins(root, args)
	if len(args) > 0 && args[0] == cobra.ShellCompRequestCmd {
		unquoteUsage(root)
	}
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
