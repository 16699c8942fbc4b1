package cni

import (
	"errors"
	"io/fs"
	"os"

	"github.com/tcpilot/tcpilot/internal/cniconf"
	"github.com/tcpilot/tcpilot/internal/cnispec"
)

// refusesPods returns an error if the plugin is being removed from the node as the main one, or has been removed: with a configuration of before, a
// runtime may still begin a pod. ADD has to write the pod's record before: a removal that begins after this sees the record, and one that
// has ended before this has removed the program.
func (r *request) refusesPods() error {
	removal, err := r.Dir.Removal()
	if err != nil {
		return err
	}
	if !r.Uninstalled && (removal == nil || r.Network != cnispec.MainNetwork) {
		// After the removal, because that ends when the program is gone.
		if _, err := os.Stat(r.program); r.program == "" || !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fail(codeUnavailable, "tcpilot-cni is uninstalled, and is only here for the end of pods that it has started").
		because("the node needs another network plugin, or 'tcpilot cni install --main'")
}

// awaitRepeat remembers an attachment before its record is deleted, if the runtime may repeat DEL when the plugin is being removed.
//
// A runtime that ends pods with its present configuration, as containerd does, needs the plugin again to remove the sandbox: then the
// namespace is gone, and CNI_NETNS is empty. One that ends them with the configuration of ADD, as CRI-O does, repeats DEL of all plugins if that
// of a plugin behind a chained one in the order of DEL has failed: then the namespace is still there.
func (r *request) awaitRepeat() error {
	if r.netns == "" {
		return nil
	}
	if r.Uninstalled {
		return r.Dir.Stopped(r.key, "")
	}
	if removal, err := r.Dir.Removal(); err != nil || removal == nil || r.main() {
		return err
	}
	return r.Dir.Stopped(r.key, r.netns)
}

// finishRemoval removes the plugin if the node waits for that, and no pod needs it any more. Errors are for the log: the next command repeats it.
// STATUS does it as well, because the kubelet has it executed every few seconds, and a DEL that is awaited may not come.
func (r *request) finishRemoval(a *answer) {
	if a.unfinished != nil {
		return // the next DEL could not be noted, and would not be awaited
	}
	if r.Uninstalled && r.command == "DEL" && r.netns == "" {
		if a.unfinished = r.Dir.Repeated(r.key); a.unfinished != nil {
			return
		}
	}
	a.removed, a.unfinished = cniconf.Finish(string(r.Dir), cnispec.HostLocalDir)
}
