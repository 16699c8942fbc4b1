package cniconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/defaults"
	"github.com/tcpilot/tcpilot/internal/filelock"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/regular"
)

// Node is where the container runtime of a node looks for network configurations and plugins.
type Node struct {
	ConfDir string // of network configurations, /etc/cni/net.d
	BinDir  string // of plugins, /opt/cni/bin
	Records string // directory of the records of pods
	Leases  string // directory in which host-local has a directory for each network
	Socket  string // the daemon's, for administrators
}

// noConfigError means that a node has no network configuration that a plugin could be added to yet.
type noConfigError struct{ Dir string }

func (e *noConfigError) Error() string {
	return fmt.Sprintf("no network configuration in %s: a network plugin writes it when it starts, and the container runtime uses the first file by name", e.Dir)
}

// Install copies program to the plugins of the node, and adds the plugin to the network configuration
// that the runtime uses. It changes nothing if pods could not start with the plugin there. It returns what it changed:
// nothing if all is in place. warning says what in the list does not fit the plugin.
func (n Node) Install(program string) (did []string, warning string, err error) {
	release, err := n.lock()
	if err != nil {
		return nil, "", err
	}
	defer release()
	if err := removeTemporaries(n.ConfDir); err != nil {
		return nil, "", err
	}
	file, c, err := n.inUse()
	if err != nil {
		return nil, "", err
	}
	unfit := cmp.Or(c.checkVersions(), n.checkPrograms(&c))
	if unfit != nil {
		unfit = fmt.Errorf("%s %w", file, unfit)
	}
	if unfit != nil && c.ours() < 0 {
		return nil, "", unfit
	}
	if did, err = n.cancelRemoval(); err != nil {
		return did, "", err
	}
	// The program first: as soon as the file has the entry, pods need the program.
	copied, err := n.copyProgram(program)
	if err != nil {
		return did, "", err
	}
	if copied {
		did = append(did, "installed "+n.Program())
	}
	// No pod needs it to end: the runtime uses another configuration.
	if err := n.removeUninstalled(); err != nil {
		return did, "", err
	}
	if unfit != nil { // the list has the plugin already, and pods need its program
		return did, unfit.Error(), nil
	}
	if c.ours() >= 0 {
		return did, c.warning(file), nil
	}
	next := c.with(n.entry())
	if check, err := parse(next); err != nil || check.ours() != len(c.plugins) {
		return did, "", fmt.Errorf("add %s to %s: the result would not be valid: %v", Type, file, err)
	}
	if err := replace(file, c.text, next); err != nil {
		return did, "", fmt.Errorf("add %s to the network configuration: %w", Type, err)
	}
	return append(did, fmt.Sprintf("added %s to %s, behind %s", Type, file, c.plugins[len(c.plugins)-1].kind)), c.warning(file), nil
}

// Uninstall takes the plugin out of all network configurations of the node, and removes its program if
// no pod needs it any more, or if force is set. Otherwise the removal waits for these pods (Finish). It returns what it changed, and what waits.
func (n Node) Uninstall(force bool) (did []string, waits podrecord.Waits, err error) {
	release, err := n.lock()
	if err != nil {
		return nil, waits, err
	}
	defer release()
	if err := removeTemporaries(n.ConfDir); err != nil {
		return nil, waits, err
	}
	files, err := n.files()
	if err != nil {
		return nil, waits, err
	}
	for _, file := range files {
		removed, err := removeFrom(file)
		if err != nil {
			return did, waits, err
		}
		if removed {
			did = append(did, fmt.Sprintf("removed %s from %s", Type, file))
		}
	}
	removed, waits, err := n.finish(force)
	return append(did, removed...), waits, err
}

// removeFrom takes the plugin out of one file, also if it occurs several times in the chain.
func removeFrom(file string) (removed bool, err error) {
	text, err := regular.Read(file, maxConfig)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !strings.Contains(string(text), Type) {
		// Such as a symbolic link of somebody else's, or one whose target is not here: Install adds the plugin to no link.
		return false, nil
	}
	if text, err = read(file); err != nil {
		return false, err
	}
	c, err := parse(text)
	if err != nil {
		return false, fmt.Errorf("%s %w", file, err)
	}
	for at := c.ours(); at >= 0; at = c.ours() {
		if c.plugins[at].makes {
			return false, fmt.Errorf("%s: %s makes the interfaces of pods there (key ipam), and the node would have no network without it: replace the file by that of another network plugin, or remove it with --main if 'cni install --main' has written it", file, Type)
		}
		if len(c.plugins) == 1 {
			return false, fmt.Errorf("%s has no other plugin than %s: remove the file", file, Type)
		}
		if c, err = parse(c.without(at)); err != nil {
			return false, fmt.Errorf("%s without %s %w", file, Type, err)
		}
		removed = true
	}
	if !removed {
		return false, nil
	}
	if err := replace(file, text, c.text); err != nil {
		return false, fmt.Errorf("remove %s from the network configuration: %w", Type, err)
	}
	return true, nil
}

// inUse is the network configuration that runtimes use: the first one by name.
func (n Node) inUse() (file string, c chain, err error) {
	files, err := n.files()
	if err != nil {
		return "", c, err
	}
	if !slices.ContainsFunc(files, func(file string) bool { return !isLoopback(file) }) {
		return "", c, &noConfigError{n.ConfDir}
	}
	file = files[0]
	if filepath.Ext(file) != ".conflist" {
		return "", c, fmt.Errorf("%s is the configuration of a single plugin, and a second one cannot be added to it: write it as a list (.conflist, with the key plugins)", file)
	}
	text, err := read(file)
	if err != nil {
		return "", c, err
	}
	if c, err = parse(text); err != nil {
		return "", c, fmt.Errorf("%s %w", file, err)
	}
	return file, c, nil
}

// configExtensions are those of the files that containerd and CRI-O read (libcni.ConfFiles).
var configExtensions = []string{".conf", ".conflist", ".json"}

// files lists the network configurations in the order of their names, without the one that is only for the end of pods.
func (n Node) files() (files []string, err error) {
	entries, err := os.ReadDir(n.ConfDir)
	if err != nil {
		return nil, fmt.Errorf("list network configurations: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() && e.Name() != uninstalledFile && slices.Contains(configExtensions, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(n.ConfDir, e.Name()))
		}
	}
	return files, nil
}

// entry is the plugin's entry in a configuration. It has only those paths that are not the default.
func (n Node) entry() string {
	// Not marshalled from a struct, so that it has the spaces of the documentation's examples.
	return `{"type": "` + Type + `"` + n.places() + `, ` + capabilities + `}`
}

// capabilities tell the runtime what to pass.
const capabilities = `"capabilities": {"io.kubernetes.cri.pod-annotations": true, "cgroupPath": true, "bandwidth": true}`

// places are the keys of an entry for the paths that are not the default.
func (n Node) places() (text string) {
	for _, o := range []struct{ key, value, standard string }{
		{"dir", n.Records, defaults.PodsDir}, {"socket", n.Socket, defaults.Socket},
	} {
		if o.value != o.standard {
			value, _ := json.Marshal(o.value) // a string always can
			text += `, "` + o.key + `": ` + string(value)
		}
	}
	return text
}

// Program is the path of the plugin on the node.
func (n Node) Program() string { return filepath.Join(n.BinDir, Type) }

// lock waits for another process that installs or removes the plugin. The directory has to exist: only
// the runtime or the network plugin knows where it is.
func (n Node) lock() (release func(), err error) { return n.lockBy(filelock.Wait) }

func (n Node) lockBy(wait func(*os.File) error) (release func(), err error) {
	dir, err := os.Open(n.ConfDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &noConfigError{n.ConfDir}
	}
	if err != nil {
		return nil, fmt.Errorf("lock network configurations: %w", err)
	}
	if err := wait(dir); err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock network configurations: %w", err)
	}
	return func() { dir.Close() }, nil
}
