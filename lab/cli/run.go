package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

// runner is the state of one `lab run`.
type runner struct {
	*app
	all      bool
	cases    []string
	subjects []string
	repeat   int
	quick    bool
	emulated bool   // inside the machine of --kernel
	command  string // inside the machine of --kernel: the command that the user typed
	backend  string
	kernel   string
	virtual  bool // time, in the machine of --kernel
	out      string
	html     string
	view     reportView
}

func (a *app) run() *cobra.Command {
	r := &runner{app: a}
	cmd := &cobra.Command{
		Use:   "run [SCENARIO...]",
		Short: "Run scenarios and report the results",
		Long: `Run scenarios, by name or from files, and show a table. It needs root and, for
meaningful figures, a machine with nothing else to do.

Every link is measured first. A case is refused if its link is not what the scenario
asks for. A round is refused if the processors were saturated, if other virtual
machines took them, or if the machine stalled. The report lists refused cases and
rounds and excludes them from the figures. Subjects take turns (A B C, B C A, ...);
those that learn have warm-up rounds first. Ratios are of rounds of the same turn,
with confidence intervals from five rounds on. The exit status is 1 if a subject
failed or no round counts.

With --kernel everything runs in a QEMU machine with that kernel and emulated
processors: slow, so that scenarios use lower rates there. With --virtual-time they
use the same as here: the machine's clock advances by 1 ns with each instruction
and skips idle time, so that its processor has 1 GHz, however long that takes. Once
its programs are loaded, the figures do not depend on this machine's speed.`,
		Example: `  sudo tcpilot lab run loss --quick
  sudo tcpilot lab run bufferbloat --subject tcpilot --subject bbr --out b.jsonl.gz
  sudo tcpilot lab run --all --out all.jsonl.gz --html all.html
  sudo tcpilot lab run datacentre --kernel 6.12`,
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, names []string) error {
			if cmd.Flags().Changed("repeat") && r.repeat < 1 {
				return console.Usagef("--repeat %d: want 1 or more", r.repeat)
			}
			if r.command == "" {
				r.command = commandLine(cmd, names)
			}
			return r.run(cmd.Context(), names)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.all, "all", false, "run every scenario that comes with tcpilot")
	r.choose(cmd)
	f.StringArrayVar(&r.subjects, "subject", nil, "only this `SUBJECT` and the baseline; need not be one of the scenario's; may be repeated")
	f.IntVar(&r.repeat, "repeat", 0, "`ROUNDS` that count, instead of the scenario's")
	f.StringVarP(&r.out, "out", "o", "", "write the records to this `FILE` (JSON lines; compressed if it ends in .gz)")
	f.StringVar(&r.html, "html", "", "write a page with plots to this `FILE`")
	f.StringVar(&r.command, "command", "", "the command that repeats the run, instead of this command line")
	cobra.CheckErr(f.MarkHidden("command"))
	r.view.flags(f)
	a.JSONFlag(cmd, "write the summary as a JSON document")
	console.Exclusive(cmd, "markdown", "json")
	console.Exclusive(cmd, "overview", "json")
	return cmd
}

// choose adds the flags that run and calibrate share.
func (r *runner) choose(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.kernel, "kernel", "", "run under this `KERNEL`: "+strings.Join(kernels, ", "))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("kernel", cobra.FixedCompletions(kernels, cobra.ShellCompDirectiveNoFileComp)))
	f.BoolVar(&r.virtual, "virtual-time", false, "with --kernel: the machine's clock counts instructions")
	f.StringArrayVar(&r.cases, "case", nil, "only this `CASE` of the scenarios; may be repeated")
	f.BoolVar(&r.quick, "quick", false, "fewer and shorter rounds, if the scenario has such a variant")
	f.StringVar(&r.backend, "backend", string(link.Auto), "`BACKEND` that emulates delay and rate: auto, netem or emulator")
	f.BoolVar(&r.emulated, "emulated", false, "the variant for slow processors, if the scenario has one")
	cobra.CheckErr(f.MarkHidden("emulated"))
}

func (r *runner) run(ctx context.Context, names []string) error {
	if r.all == (len(names) > 0) {
		return console.Usagef("name scenarios, or use --all; 'tcpilot lab list' lists them")
	}
	if r.all {
		names = scenario.Names()
	}
	for _, file := range []string{r.out, r.html} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err == nil {
			return console.Usagef("%s exists, and a report is not overwritten: name another file, or remove it", file)
		}
	}
	list, err := r.read(names)
	if err != nil {
		return err
	}
	var result *report.Report
	var stopped error
	if r.kernel != "" {
		result, stopped = r.runUnderKernel(ctx, names, list)
	} else {
		result, stopped = r.here(ctx, list)
	}
	if result == nil {
		return stopped
	}
	// Show the figures of a run that was stopped, too.
	return errors.Join(r.show(result), stopped)
}

// here runs the scenarios on this kernel. The report is nil if nothing was written.
func (r *runner) here(ctx context.Context, list []*scenario.Scenario) (*report.Report, error) {
	o, err := r.options(list)
	if err != nil {
		return nil, err
	}
	var memory bytes.Buffer
	out, kept := report.NewZipWriter(&memory), io.Reader(&memory)
	if r.out != "" {
		if out, err = report.Create(r.out); err != nil {
			return nil, err
		}
	}
	about := experiment.Machine()
	about.Tcpilot, about.Command = r.Version, r.command
	about.Quick, about.Repeat = r.quick, r.repeat
	about.Emulated, about.VirtualTime = r.emulated, r.virtual
	tell := &progress{app: r.app}
	if r.virtual {
		tell.clock = " of virtual time"
	}
	o.Out, o.Progress = out, tell.tell
	stopped := r.Env.Run(ctx, o, about)
	tell.end()
	if err := out.Close(); err != nil {
		return nil, errors.Join(stopped, err)
	}
	var result *report.Report
	if r.out != "" {
		result, err = report.Open(r.out)
	} else {
		result, err = report.Read(kept)
	}
	if err != nil {
		if stopped != nil { // before there was anything to write
			if r.out != "" {
				os.Remove(r.out)
			}
			return nil, stopped
		}
		return nil, fmt.Errorf("read the report back: %w", err)
	}
	if ctx.Err() == nil && (stopped == nil || len(result.Cases) > 0) {
		stopped = errors.Join(stopped, figures(result))
	}
	return result, stopped
}

// read reads scenarios, in the variant for where they run.
func (r *runner) read(names []string) ([]*scenario.Scenario, error) {
	if r.virtual && r.kernel == "" && !r.emulated {
		return nil, console.Usagef("--virtual-time needs an emulated machine: choose its kernel with --kernel")
	}
	return readScenarios(names, scenario.Options{Quick: r.quick, Emulated: r.slow()})
}

// slow reports whether everything runs on an emulated processor in real time.
func (r *runner) slow() bool { return (r.kernel != "" || r.emulated) && !r.virtual }

func (r *runner) options(list []*scenario.Scenario) (o experiment.Options, err error) {
	switch b := link.Backend(r.backend); b {
	case link.Auto, link.Netem, link.Emulator:
		o.Backend = b
	default:
		return o, console.Usagef("backend %q: write auto, netem or emulator", r.backend)
	}
	o.Scenarios, o.Cases, o.Subjects, o.Repeat, o.Quick, o.Emulated = list, r.cases, r.subjects, r.repeat, r.quick, r.slow()
	o.Binary, err = r.Tcpilot()
	return o, err
}

// figures returns an error if a run that was not stopped has no figures.
func figures(r *report.Report) error {
	var first, last string // reasons
	for _, c := range r.Cases {
		if c.Refused != "" && first == "" {
			first = fmt.Sprintf("every case was refused, the first (%s) because %s", c.FullName(), c.Refused)
		}
		for _, round := range c.Rounds {
			if round.Repeat > 0 && round.Refused == "" {
				return nil
			}
			if round.Refused != "" {
				last = fmt.Sprintf("every round was refused or failed, the last (%s with %s) because %s", c.FullName(), round.Subject, round.Refused)
			}
		}
	}
	return fmt.Errorf("there are no figures: %s", cmp.Or(last, first, "no subject can run here"))
}

// show writes the report for people, or its summary, and the page.
func (r *runner) show(result *report.Report) error {
	err := r.showReport(result, r.view)
	if r.html != "" {
		err = errors.Join(err, r.writePage(r.html, result))
	}
	return err
}

// commandLine is the command that repeats a run, quoted for a shell.
func commandLine(cmd *cobra.Command, names []string) string {
	argv := strings.Fields(cmd.CommandPath())
	for _, name := range names {
		argv = append(argv, quoted(name))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			for _, s := range v.GetSlice() {
				argv = append(argv, "--"+f.Name, quoted(s))
			}
		default:
			if f.Value.Type() == "bool" {
				argv = append(argv, "--"+f.Name)
			} else {
				argv = append(argv, "--"+f.Name, quoted(f.Value.String()))
			}
		}
	})
	return strings.Join(argv, " ")
}

// progress shows how far a run is: in one line that is updated on a terminal, or in a line
// for each case elsewhere.
type progress struct {
	*app
	clock string // " of virtual time" if that is what it tells
	title string
	wide  int // length of the current line, in characters
}

func (p *progress) tell(now experiment.Progress) {
	if !p.StderrTerminal {
		if now.Case != p.title {
			fmt.Fprintf(p.Stderr, "%s (%.0f %% done, about %s%s left)\n", now.Case, now.Done*100, console.Span(now.Remains), p.clock)
		}
		p.title = now.Case
		return
	}
	line := fmt.Sprintf("%3.0f %%  %s%s left  %s: %s", now.Done*100, console.Span(now.Remains), p.clock, now.Case, now.Step)
	fmt.Fprintf(p.Stderr, "\r%-*s", p.wide, line)
	p.wide = len(line)
}

// end removes the line.
func (p *progress) end() {
	if p.StderrTerminal && p.wide > 0 {
		fmt.Fprintf(p.Stderr, "\r%*s\r", p.wide, "")
	}
}
