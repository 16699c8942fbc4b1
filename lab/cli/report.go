package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/report"
)

func (a *app) report() *cobra.Command {
	var html string
	var force bool
	var view reportView
	cmd := &cobra.Command{
		Use:   "report FILE...",
		Short: "Show the report of a run: table, page, Markdown or JSON",
		Long: `Show reports that 'tcpilot lab run --out' wrote: as a table, as one page with plots
that needs no network (--html), as Markdown, or as a JSON summary. Several files are
shown one after the other, each under its name, in JSON as one document each; on a
page they share an overview. A report that was cut off is shown to its last round.`,
		Example: `  tcpilot lab report today.jsonl.gz
  tcpilot lab report today.jsonl.gz --html today.html`,
		Args: console.Args(1, 100, "FILE"),
		RunE: func(_ *cobra.Command, files []string) error {
			if err := newFile(html); err != nil && !force {
				return err
			}
			var all []*report.Report
			for _, file := range files {
				r, err := report.Open(file)
				if err != nil {
					return err
				}
				r.File = file
				all = append(all, r)
			}
			if html != "" {
				if force {
					return a.page(html, os.O_TRUNC, all...)
				}
				return a.writePage(html, all...)
			}
			view.named = len(all) > 1
			for _, r := range all {
				if err := a.showReport(r, view); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&html, "html", "", "write a page with plots to this `FILE`")
	f.BoolVar(&force, "force", false, "let --html overwrite a file")
	view.flags(f)
	a.JSONFlag(cmd, "write the summary as a JSON document, one for each file")
	console.Exclusive(cmd, "html", "markdown", "json")
	console.Exclusive(cmd, "html", "overview", "json")
	return cmd
}

func (a *app) compare() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Compare two reports",
		Long: `Compare two reports: for each case and subject that both have, the medians, the
ratio B/A with its 95 % confidence interval, whether they agree, and how the
machines, runs and cases differ.`,
		Example: "  tcpilot lab compare yesterday.jsonl.gz today.jsonl.gz",
		Args:    console.Args(2, 2, "report"),
		RunE: func(_ *cobra.Command, files []string) error {
			first, err := report.Open(files[0])
			if err != nil {
				return err
			}
			second, err := report.Open(files[1])
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(report.Compared(first, second))
			}
			var b bytes.Buffer
			if err := report.Compare(&b, first, second, a.reportStyle()); err != nil {
				return err
			}
			return a.Print(b.Bytes())
		},
	}
	a.JSONFlag(cmd, "write a JSON document")
	return cmd
}

func (a *app) reportStyle() report.Style { return report.Style{Colour: a.Terminal} }

// reportView is how tables are written.
type reportView struct {
	markdown, overview bool
	named              bool // print the file's name above each report
}

func (v *reportView) flags(f *pflag.FlagSet) {
	f.BoolVar(&v.markdown, "markdown", false, "write tables in Markdown")
	f.BoolVar(&v.overview, "overview", false, "only the table over all cases")
}

// showReport writes a report for people, or its summary.
func (a *app) showReport(r *report.Report, v reportView) error {
	sum := r.Summary()
	if a.JSON {
		return a.PrintJSON(sum)
	}
	var b bytes.Buffer
	if v.named && v.markdown {
		fmt.Fprintf(&b, "## `%s`\n\n", r.File)
	} else if v.named {
		a.Heading(&b, r.File)
	}
	if err := v.write(&b, r, sum.Cases, a.reportStyle()); err != nil {
		return err
	}
	return a.Print(b.Bytes())
}

func (v reportView) write(w io.Writer, r *report.Report, cases []report.CaseSummary, s report.Style) (err error) {
	if !v.overview {
		if v.markdown {
			err = report.Markdown(w, r)
		} else {
			err = report.Table(w, r, s)
		}
	}
	if err != nil || !v.overview && len(cases) < 2 {
		return err
	}
	if v.markdown {
		return report.OverviewMarkdown(w, cases)
	}
	return report.Overview(w, cases, s)
}

// newFile returns an error if a file of that name exists.
func newFile(name string) error {
	if name == "" {
		return nil
	}
	if _, err := os.Lstat(name); err == nil {
		return console.Usagef("%s exists: use --force to overwrite it", name)
	}
	return nil
}

// writePage writes reports as a page to a file that does not exist yet.
func (a *app) writePage(file string, all ...*report.Report) error {
	return a.page(file, os.O_EXCL, all...)
}

// page writes the page to a file, which it opens with O_CREATE and the flags in how.
func (a *app) page(file string, how int, all ...*report.Report) error {
	var b bytes.Buffer
	if err := report.HTML(&b, all...); err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|how, 0o644)
	if err == nil {
		_, err = out.Write(b.Bytes())
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
