package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// delegate executes a command of another plugin (section 4), with the configuration and environment
// of this one except for the attachment. The result is nil unless the command is ADD.
type delegate func(command, plugin string, conf []byte, k pod.Key, netns string) (types.Result, error)

// delegates finds plugins in CNI_PATH. What they write to standard error is written to stderr.
func delegates(getenv func(string) string, stderr io.Writer) delegate {
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}}
	return func(command, plugin string, conf []byte, k pod.Key, netns string) (types.Result, error) {
		path := getenv("CNI_PATH")
		program, err := exec.FindInPath(plugin, filepath.SplitList(path))
		if err != nil {
			return nil, fail(codeConfig, "%v: CNI_PATH is %q", err, path)
		}
		args := &invoke.Args{Command: command, ContainerID: k.Container, IfName: k.Interface, NetNS: netns, PluginArgsStr: getenv("CNI_ARGS"), Path: path}
		if command == "ADD" {
			return invoke.ExecPluginWithResult(context.Background(), program, conf, args, exec)
		}
		return nil, invoke.ExecPluginWithoutResult(context.Background(), program, conf, args, exec)
	}
}

// delegateEnds is how long a command waits for an IPAM plugin that an earlier command started. That plugin goes on
// when the earlier command is killed, and may allocate an address after this command has released it.
const delegateEnds = 5 * time.Second

// ipam executes a command of the plugin that gives addresses. The time that it takes does not count (bound).
func (r *request) ipam(command string, k pod.Key, netns string) (result *types100.Result, err error) {
	return r.ipamWith(r.input, command, k, netns)
}

// ipamWith is ipam with another network configuration than the runtime's.
func (r *request) ipamWith(conf []byte, command string, k pod.Key, netns string) (result *types100.Result, err error) {
	plugin, err := r.ipamPlugin()
	if err != nil {
		return nil, err
	}
	r.bound.outside(func() {
		var got types.Result
		if got, err = r.delegateAlone(command, plugin, conf, k, netns); err == nil && got != nil {
			result, err = types100.NewResultFromResult(got)
		}
	})
	if err != nil {
		return nil, ofDelegate(fmt.Sprintf("%s of IPAM plugin %s", command, plugin), err)
	}
	return result, nil
}

// delegateAlone executes a command of another plugin when none runs for the same attachment.
func (r *request) delegateAlone(command, plugin string, conf []byte, k pod.Key, netns string) (types.Result, error) {
	if k != (pod.Key{}) { // STATUS and GC are about no attachment
		release, err := r.Dir.Hold(k, delegateEnds)
		if err != nil {
			return nil, fail(codeTryAgain, "it still runs for an earlier command: %v", err)
		}
		defer release()
	}
	return r.delegate(command, plugin, conf, k, netns)
}

// collectAddresses is GC of the plugin that gives addresses. Attachments of which something is left keep their
// addresses, as valid ones do.
func (r *request) collectAddresses(left []pod.Key) error {
	conf, err := withValid(r.input, left)
	if err == nil {
		_, err = r.ipamWith(conf, "GC", pod.Key{}, "")
	}
	return err
}

// ofDelegate converts a delegate's error to one of this plugin, with the delegate's code (section 4: "If a delegated
// plugin fails, the error should be returned by the upper plugin").
func ofDelegate(what string, err error) error {
	var its *types.Error
	if errors.As(err, &its) && its.Code != 0 {
		return fail(code(its.Code), "%s: %s", what, its.Msg).because("%s", its.Details)
	}
	var ours *failure
	if errors.As(err, &ours) {
		return fail(ours.Code, "%s: %s", what, ours.Message)
	}
	return fail(codeIO, "%s: %v", what, err)
}
