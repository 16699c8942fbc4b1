package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/lab/report"
)

func (a *app) labReport() *cobra.Command {
	var html string
	var markdown bool
	cmd := &cobra.Command{
		Use:   "report FILE...",
		Short: "Show what a run wrote: table, page, Markdown or JSON",
		Long: `Show reports that 'tcpilot lab run --out' wrote: as a table, as one page with plots
that needs no network (--html), as Markdown, or as a JSON summary. A report of a
run that was cut off is read as far as it goes.`,
		Example: `  tcpilot lab report today.jsonl.gz
  tcpilot lab report today.jsonl.gz --html today.html`,
		Args: args(1, 100, "FILE"),
		RunE: func(_ *cobra.Command, files []string) error {
			var all []*report.Report
			for _, file := range files {
				r, err := report.Open(file)
				if err != nil {
					return err
				}
				all = append(all, r)
			}
			if html != "" {
				return a.writePage(html, all...)
			}
			for _, r := range all {
				if err := a.showAs(r, markdown); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&html, "html", "", "write a page with plots to this `file`")
	f.BoolVar(&markdown, "markdown", false, "write tables in Markdown")
	a.jsonFlag(cmd, "write the summary as a JSON document")
	cmd.MarkFlagsMutuallyExclusive("html", "markdown", "json")
	return cmd
}

func (a *app) labCompare() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Set two reports side by side",
		Long: `Compare two reports: for each case and subject that both have, the medians, the
ratio B/A with its 95 % confidence interval, and whether they agree.`,
		Example: "  tcpilot lab compare yesterday.jsonl.gz today.jsonl.gz",
		Args:    args(2, 2, "report"),
		RunE: func(_ *cobra.Command, files []string) error {
			first, err := report.Open(files[0])
			if err != nil {
				return err
			}
			second, err := report.Open(files[1])
			if err != nil {
				return err
			}
			if a.json {
				doc, err := indented(report.Compared(first, second))
				if err != nil {
					return err
				}
				return a.print(doc)
			}
			var b bytes.Buffer
			if err := report.Compare(&b, first, second, a.reportStyle()); err != nil {
				return err
			}
			return a.print(b.Bytes())
		},
	}
	a.jsonFlag(cmd, "write a JSON document")
	return cmd
}

func (a *app) reportStyle() report.Style { return report.Style{Colour: a.Terminal} }

// showReport writes a report for people, or its summary.
func (a *app) showReport(r *report.Report) error { return a.showAs(r, false) }

func (a *app) showAs(r *report.Report, markdown bool) error {
	summaries := report.Summarise(r)
	if a.json {
		doc, err := indented(summaries)
		if err != nil {
			return err
		}
		return a.print(doc)
	}
	var b bytes.Buffer
	var err error
	if markdown {
		err = errors.Join(report.Markdown(&b, r), report.OverviewMarkdown(&b, summaries))
	} else {
		err = report.Table(&b, r, a.reportStyle())
		if len(summaries) > 1 {
			err = errors.Join(err, report.Overview(&b, summaries, a.reportStyle()))
		}
	}
	if err != nil {
		return err
	}
	return a.print(b.Bytes())
}

// writePage writes reports as a page, all of it or nothing.
func (a *app) writePage(file string, all ...*report.Report) error {
	var b bytes.Buffer
	if err := report.HTML(&b, all...); err != nil {
		return err
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
