package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

// An emulated machine is slow, and its speed varies: a run may take slowness times its
// estimate, in virtual time virtualSlowness, and starting and stopping the machine bootTime.
const (
	slowness        = 4
	virtualSlowness = 30
	bootTime        = 5 * time.Minute
)

// kernels are the values of --kernel that help and completion list; the scripts of test/vm
// decide which exist.
var kernels = []string{"6.1", "6.8", "6.11", "6.12", "6.18", "7"}

// inside is the command line that runs the same command inside the emulated machine.
func (r *runner) inside(verb string, names []string) []string {
	args := append([]string{verb, "--emulated", "--backend", r.backend}, names...)
	for _, c := range r.cases {
		args = append(args, "--case", c)
	}
	if r.quick {
		args = append(args, "--quick")
	}
	if r.virtual {
		args = append(args, "--virtual-time")
	}
	return args
}

// machine describes the emulated machine for a command line that takes length on a real
// machine.
func (r *runner) machine(args []string, length time.Duration) VMOptions {
	limit := slowness * length
	if r.virtual {
		limit = virtualSlowness * length
	}
	return VMOptions{Kernel: r.kernel, VirtualTime: r.virtual, Args: args, Limit: limit + bootTime, Stderr: r.Stderr}
}

// calibrateElsewhere measures links under another kernel.
func (r *runner) calibrateElsewhere(ctx context.Context, names []string, list []*scenario.Scenario) error {
	o, err := r.options(list)
	if err != nil {
		return err
	}
	length, err := o.EstimateCalibration()
	if err != nil {
		return err
	}
	args := r.inside("calibrate", names)
	if r.JSON {
		args = append(args, "--json")
	}
	vm := r.machine(args, length)
	vm.Stdout = r.Stdout
	return r.VM(ctx, vm)
}

// runUnderKernel runs the same command under another kernel, where everything except a
// directory for the report is read-only. If the report cannot be copied from that
// directory, it stays there.
func (r *runner) runUnderKernel(ctx context.Context, names []string, list []*scenario.Scenario) (*report.Report, error) {
	o, err := r.options(list)
	if err != nil {
		return nil, err
	}
	length, err := o.Estimate()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tcpilot-lab-")
	if err != nil {
		return nil, fmt.Errorf("make directory for the report: %w", err)
	}
	out := filepath.Join(dir, "report.jsonl")
	if strings.HasSuffix(r.out, ".gz") {
		out += ".gz"
	}
	args := append(r.inside("run", names), "--command", r.command, "--out", out)
	for _, s := range r.subjects {
		args = append(args, "--subject", s)
	}
	if r.repeat > 0 {
		args = append(args, "--repeat", fmt.Sprint(r.repeat))
	}
	vm := r.machine(args, length)
	vm.Dir, vm.Stdout = dir, io.Discard
	stopped := r.VM(ctx, vm)
	info, err := os.Stat(out)
	if err != nil || info.Size() == 0 {
		if stopped == nil {
			stopped = errors.New("the run wrote no report")
		}
		return nil, errors.Join(stopped, os.RemoveAll(dir))
	}
	result, err := report.Open(out)
	if err == nil && r.out != "" {
		err = copyReport(out, r.out)
	}
	if err != nil {
		// Not part of the error, because errors are not printed after Ctrl-C.
		fmt.Fprintf(r.Stderr, "tcpilot: the report stays at %s\n", out)
		return result, errors.Join(stopped, err)
	}
	return result, errors.Join(stopped, os.RemoveAll(dir))
}

// copyReport copies a report to a file that does not exist yet. If that fails, no partial
// file remains.
func copyReport(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy report: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("copy report: %w", err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copy report: %w", errors.Join(err, os.Remove(to)))
	}
	return nil
}
