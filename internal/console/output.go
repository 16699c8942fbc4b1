package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Streams are the standard streams of a program.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Terminal: Stdout is a terminal, so that output may be coloured and redrawn.
	// StderrTerminal: Stderr is one, so that progress may be shown there.
	Terminal, StderrTerminal bool
	// Width is how many columns Stdout has; 0 is no limit.
	Width int
}

// Standard are the streams of this process.
func Standard() Streams {
	return Streams{os.Stdin, os.Stdout, os.Stderr, isTerminal(os.Stdout), isTerminal(os.Stderr), columns(os.Stdout)}
}

// columns is how many columns f has, 0 if it is no terminal.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// isTerminal reports whether f is a terminal that understands escape sequences.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == ""
}

// Attach makes cmd use the streams.
func (s Streams) Attach(cmd *cobra.Command) {
	cmd.SetIn(s.Stdin)
	cmd.SetOut(s.Stdout)
	cmd.SetErr(s.Stderr)
}

// Output writes the result of a command, as text or as JSON.
type Output struct {
	Paint Painter
	JSON  bool // by --json

	to io.Writer
}

// NewOutput returns an Output to s.Stdout.
func NewOutput(s Streams) *Output { return &Output{to: s.Stdout, Paint: Painter{s.Terminal}} }

// JSONFlag adds --json.
func (o *Output) JSONFlag(cmd *cobra.Command, doc string) {
	cmd.Flags().BoolVar(&o.JSON, "json", false, doc)
}

// Emit writes a JSON document, rendered as text or unchanged.
func Emit[T any](o *Output, doc []byte, render func(io.Writer, T)) error {
	if o.JSON {
		return o.Print(doc)
	}
	var v T
	if err := json.Unmarshal(doc, &v); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	var b bytes.Buffer
	render(&b, v)
	return o.Print(b.Bytes())
}

// EmitValue is Emit for a value that is not encoded as JSON yet.
func EmitValue[T any](o *Output, v T, render func(io.Writer, T)) error {
	if o.JSON {
		return o.PrintJSON(v)
	}
	var b bytes.Buffer
	render(&b, v)
	return o.Print(b.Bytes())
}

// Print writes everything at once, so that a full disk is noticed.
func (o *Output) Print(b []byte) error {
	if _, err := o.to.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// PrintJSON writes v as an indented JSON document.
func (o *Output) PrintJSON(v any) error {
	doc, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return o.Print(append(doc, '\n'))
}

// Heading starts a section.
func (o *Output) Heading(w io.Writer, s string) { fmt.Fprintf(w, "\n%s\n", o.Paint.Bold(s)) }
