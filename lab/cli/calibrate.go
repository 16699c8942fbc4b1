package cli

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/experiment"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

func (a *app) calibrate() *cobra.Command {
	r := &runner{app: a}
	cmd := &cobra.Command{
		Use:   "calibrate [SCENARIO...]",
		Short: "Measure what links actually do, and whether this machine is quiet",
		Long: `Build the networks of scenarios, measure each path (round trip, loss, rate, queue,
marks, order) and compare it with what the scenario asks for. Monitor the processors
meanwhile. Without a name, measure the scenarios that come with tcpilot. The exit
status is 1 if a link is not as asked or the machine is not quiet. With --kernel,
measure under another kernel, as 'tcpilot lab run --kernel' does.`,
		Example: `  sudo tcpilot lab calibrate loss
  sudo tcpilot lab calibrate satellite --backend netem
  sudo tcpilot lab calibrate datacentre --kernel 6.12`,
		ValidArgsFunction: completeScenarios,
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				names = scenario.Names()
			}
			list, err := r.read(names)
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
	a.JSONFlag(cmd, "write a JSON document for each path")
	return cmd
}

func (r *runner) calibrate(cmd *cobra.Command, o experiment.Options) error {
	wrong := 0
	var perr error
	err := r.Env.Calibrate(cmd.Context(), o, func(c experiment.Calibration) {
		if c.Refused != "" {
			wrong++
		}
		perr = errors.Join(perr, r.showCalibration(c))
	})
	if err = errors.Join(err, perr); err != nil {
		return err
	}
	if wrong > 0 {
		return console.Silent{Err: fmt.Errorf("%d paths differ from the scenario", wrong)}
	}
	return nil
}

func (r *runner) showCalibration(c experiment.Calibration) error {
	if r.JSON {
		return r.PrintJSON(c)
	}
	var b bytes.Buffer
	r.Heading(&b, c.Title)
	if c.Measured != nil {
		fmt.Fprintf(&b, "%s to %s\n", c.From, c.To)
		t := console.NewTable("", ">ASKED", ">MEASURED", "")
		for _, row := range c.Measured.Rows() {
			t.Row(row.Name, row.Asked, row.Measured, row.Reason())
		}
		t.Write(&b, r.Paint, "  ")
	}
	if c.Refused != "" {
		fmt.Fprintf(&b, "not as asked: %s\n", c.Refused)
	}
	return r.Print(b.Bytes())
}
