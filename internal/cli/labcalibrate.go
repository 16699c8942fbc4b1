package cli

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/lab/experiment"
	"github.com/tcpilot/tcpilot/internal/lab/scenario"
)

func (a *app) labCalibrate() *cobra.Command {
	r := &labRun{app: a}
	cmd := &cobra.Command{
		Use:   "calibrate [SCENARIO...]",
		Short: "Measure what links really do, and whether this machine is quiet",
		Long: `Build the networks of scenarios, measure each path (round trip, loss, rate, queue,
marks, order) and set it beside what was asked; and watch the processors meanwhile.
Without a name the scenarios that come with tcpilot are measured. The exit status
is 1 if a link or the machine is not sane. With --kernel it all happens under another
kernel, as by 'tcpilot lab run --kernel'.`,
		Example: `  sudo tcpilot lab calibrate loss
  sudo tcpilot lab calibrate satellite --backend netem
  sudo tcpilot lab calibrate datacentre --kernel 6.12`,
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				names = scenario.Names()
			}
			list, err := readScenarios(names, scenario.Options{Quick: r.quick, Emulated: r.emulated || r.kernel != ""})
			if err != nil {
				return err
			}
			if r.kernel != "" {
				return r.calibrateElsewhere(cmd.Context(), names, list)
			}
			o, err := r.options(list)
			if err != nil {
				return err
			}
			return r.calibrate(cmd, o)
		},
	}
	r.choose(cmd)
	a.jsonFlag(cmd, "write a JSON document for each path")
	return cmd
}

func (r *labRun) calibrate(cmd *cobra.Command, o experiment.Options) error {
	wrong := 0
	var perr error
	err := r.Lab.Calibrate(cmd.Context(), o, func(c experiment.Calibration) {
		if c.Refused != "" {
			wrong++
		}
		perr = errors.Join(perr, r.showCalibration(c))
	})
	if err = errors.Join(err, perr); err != nil {
		return err
	}
	if wrong > 0 {
		return silent{fmt.Errorf("%d paths are not sane", wrong)}
	}
	return nil
}

func (r *labRun) showCalibration(c experiment.Calibration) error {
	if r.json {
		return r.printIndented(c)
	}
	var b bytes.Buffer
	r.heading(&b, c.Title)
	if c.Measured != nil {
		fmt.Fprintf(&b, "%s to %s\n", c.From, c.To)
		t := newTable("", ">ASKED", ">MEASURED", "")
		for _, row := range c.Measured.Rows() {
			t.row(row.Name, row.Asked, row.Measured, row.Words())
		}
		t.write(&b, r.paint, "  ")
	}
	if c.Refused != "" {
		fmt.Fprintf(&b, "not sane: %s\n", c.Refused)
	}
	return r.print(b.Bytes())
}
