package cniconf

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/cnispec"
)

// unchained are the versions of the specification that are older than chains. A list may have them in cniVersions:
// no runtime chooses them as long as cniVersion is a later one.
var unchained = []string{"0.1.0", "0.2.0"}

// checkVersions returns an error if a runtime may give the plugin a version of the specification that it does not
// support: then each new pod of the node would fail.
//
// Runtimes take the greatest version that they know of cniVersion and cniVersions; those that know no later one than
// 1.0.0 take cniVersion. libcni takes a list without a version as 0.1.0.
func (c *chain) checkVersions() error {
	var keys map[string]json.RawMessage // not a struct, for which keys in any case would do
	if err := json.Unmarshal(c.text, &keys); err != nil {
		return err
	}
	supported := strings.Join(cnispec.Versions, ", ")
	const todo = `pods could not start. Set "cniVersion": "1.0.0" if the other plugins support that, in the place from which the network plugin writes the file`
	var version string
	if text, set := keys["cniVersion"]; !set {
		return fmt.Errorf("has no cniVersion, which container runtimes take as 0.1.0; %s supports %s, and %s", Type, supported, todo)
	} else if err := json.Unmarshal(text, &version); err != nil {
		return fmt.Errorf("has the cniVersion %.40s, which is not a string", text)
	}
	if !slices.Contains(cnispec.Versions, version) {
		return fmt.Errorf("has the cniVersion %.40q; %s supports %s, and %s", version, Type, supported, todo)
	}
	var more []string
	if text, set := keys["cniVersions"]; set {
		if err := json.Unmarshal(text, &more); err != nil {
			return fmt.Errorf("has cniVersions that are not an array of strings: %.60s", text)
		}
	}
	for _, v := range more {
		if !slices.Contains(cnispec.Versions, v) && !slices.Contains(unchained, v) {
			return fmt.Errorf("has %.40q in cniVersions, which a container runtime may choose; %s supports %s, and pods could not start. Remove it from cniVersions, in the place from which the network plugin writes the file",
				v, Type, supported)
		}
	}
	return nil
}

// checkPrograms returns an error if the program of another plugin of the chain is not in the directory of plugins:
// then the runtime would not find this plugin there either, and each new pod of the node would fail.
func (n Node) checkPrograms(c *chain) error {
	for _, p := range c.plugins {
		if p.kind == Type {
			continue
		}
		// Lstat, because a container that has only this directory cannot follow all links out of it.
		if info, err := os.Lstat(filepath.Join(n.BinDir, p.kind)); err == nil && !info.IsDir() {
			continue
		}
		return fmt.Errorf("has the plugin %s, whose program is not in %s: if the container runtime looks for plugins in another directory, pods could not start with %s in this one. "+
			"Name the runtime's directory (--bin-dir, or the volume cni-bin of the manifest); if it has several, link the programs of the list into one", p.kind, n.BinDir, Type)
	}
	return nil
}

// bandwidthPlugin is the plugin of the CNI project that limits the bandwidth of pods.
const bandwidthPlugin = "bandwidth"

// warning says what in the chain does not fit the plugin, but does not stop pods; empty if nothing does.
func (c *chain) warning(file string) string {
	if !slices.ContainsFunc(c.plugins, func(p entry) bool { return p.kind == bandwidthPlugin }) {
		return ""
	}
	return fmt.Sprintf("%s has the plugin %s, which limits pods by the same annotations as tcpilot, and whose queue delays what tcpilot paces: "+
		"remove it from the list, or switch tcpilot's limits off (pods: {bandwidth: off})", file, bandwidthPlugin)
}
