package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/cnispec"
	"github.com/tcpilot/tcpilot/internal/regular"
)

// Main is what the main plugin has to know of the cluster.
type Main struct {
	PodCIDRs []netip.Prefix // of this node's pods: at most one of each family
	Cluster  []netip.Prefix // of all nodes' pods, whose packets to each other are not masqueraded
}

// mainFile is the network configuration with tcpilot-cni as the main plugin.
const mainFile = "10-tcpilot.conflist"

// helpers are the plugins of the CNI project that the main plugin's configuration has.
var helpers = []string{"host-local", "portmap"}

// InstallMain copies program to the plugins of the node, and writes the node's network configuration with it as the main plugin. It
// changes nothing if the node has another network plugin, or if pods could not start. It returns what it changed: nothing if all is in
// place. warning says what may not be as it was meant.
func (n Node) InstallMain(program string, m Main) (did []string, warning string, err error) {
	if err := m.check(); err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(n.ConfDir, 0o755); err != nil {
		return nil, "", fmt.Errorf("make directory of network configurations: %w", err)
	}
	release, err := n.lock()
	if err != nil {
		return nil, "", err
	}
	defer release()
	if err := removeTemporaries(n.ConfDir); err != nil {
		return nil, "", err
	}
	if err := n.checkAlone(); err != nil {
		return nil, "", err
	}
	for _, name := range helpers {
		if info, err := os.Lstat(filepath.Join(n.BinDir, name)); err != nil || info.IsDir() {
			return nil, "", fmt.Errorf("the program %s is not in %s, and the main plugin needs it: install the plugins of the CNI project there (package kubernetes-cni or containernetworking-plugins), or name the container runtime's directory of plugins (--bin-dir)", name, n.BinDir)
		}
	}
	if did, err = n.cancelRemoval(); err != nil {
		return did, "", err
	}
	copied, err := n.copyProgram(program)
	if err != nil {
		return did, "", err
	}
	if copied {
		did = append(did, "installed "+n.Program())
	}
	changed, err := writeNew(filepath.Join(n.ConfDir, mainFile), n.mainConfig(m))
	if err != nil {
		return did, "", fmt.Errorf("write network configuration: %w", err)
	}
	if changed {
		did = append(did, fmt.Sprintf("wrote %s, with %s as the main plugin and addresses of %s", filepath.Join(n.ConfDir, mainFile), Type, join(m.PodCIDRs)))
	}
	// Not earlier, because until then the runtime needs it to end pods.
	if err := n.removeUninstalled(); err != nil {
		return did, "", err
	}
	if len(m.Cluster) == 0 {
		warning = "without --cluster-cidr, pods of other nodes see this node's address instead of that of the pod that connects to them"
	}
	return did, warning, nil
}

// check returns what is wrong with the networks.
func (m *Main) check() error {
	if len(m.PodCIDRs) == 0 {
		return errors.New("the network of this node's pods is not known")
	}
	seen := map[bool]netip.Prefix{}
	for _, p := range m.PodCIDRs {
		if had, twice := seen[p.Addr().Is4()]; twice {
			return fmt.Errorf("%v and %v are of the same family: a node has one network of pods of each", had, p)
		}
		seen[p.Addr().Is4()] = p
		// host-local needs room for an address beside those of the network, the gateway and, for IPv4, the broadcast.
		if p != p.Masked() || p.Bits() == 0 || p.Addr().BitLen()-p.Bits() < 2 {
			return fmt.Errorf("%v cannot be the network of a node's pods: it must have room for 4 addresses, and begin with the first of them", p)
		}
	}
	return nil
}

// checkAlone returns an error if the node has the configuration of another network plugin: runtimes would use only the first of both, and pods
// that run would be of another network than those that start.
func (n Node) checkAlone() error {
	files, err := n.files()
	if err != nil {
		return err
	}
	for _, file := range files {
		if filepath.Base(file) == mainFile {
			continue
		}
		if isLoopback(file) {
			continue
		}
		return fmt.Errorf("%s is the configuration of another network plugin: remove that plugin first, or install %s behind it (without --main)", file, Type)
	}
	return nil
}

// isLoopback reports whether a network configuration has no other plugin than loopback. CRI-O has one: a single plugin, or in later versions a list.
func isLoopback(file string) bool {
	type plugin struct {
		Type string `json:"type"`
	}
	var c struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	text, err := read(file)
	if err != nil || json.Unmarshal(text, &c) != nil {
		return false
	}
	if c.Plugins == nil {
		c.Plugins = []plugin{c.plugin}
	}
	return len(c.Plugins) > 0 && !slices.ContainsFunc(c.Plugins, func(p plugin) bool { return p.Type != "loopback" })
}

// mainConfig is the text of the network configuration.
func (n Node) mainConfig(m Main) []byte {
	var ranges []string
	for _, p := range m.PodCIDRs {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, p))
	}
	except := ""
	if len(m.Cluster) > 0 {
		list, _ := json.Marshal(m.Cluster) // prefixes always can
		except = fmt.Sprintf("\n      \"ipMasqExcept\": %s,", strings.ReplaceAll(string(list), ",", ", "))
	}
	return fmt.Appendf(nil, `{
  "cniVersion": "1.0.0",
  "cniVersions": ["1.0.0", "1.1.0"],
  "name": %q,
  "plugins": [
    {
      "type": %q%s,
      "ipMasq": true,%s
      "ipam": {"type": "host-local", "ranges": [%s]},
      %s
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, cnispec.MainNetwork, Type, n.places(), except, strings.Join(ranges, ", "), capabilities)
}

// isMain reports whether a network configuration is one of mainConfig.
func isMain(text []byte) bool {
	var c struct {
		Name    string `json:"name"`
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	return json.Unmarshal(text, &c) == nil && c.Name == cnispec.MainNetwork && len(c.Plugins) > 0 && c.Plugins[0].Type == Type
}

func join(list []netip.Prefix) string {
	var texts []string
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " and ")
}

// ownFile is the mode of a network configuration that this process writes anew.
type ownFile struct{ fs.FileInfo }

func (ownFile) Mode() fs.FileMode { return 0o600 }
func (ownFile) Sys() any          { return nil }

// writeNew puts a file in its place, whether or not there is one, unless that has these contents already.
func writeNew(file string, text []byte) (changed bool, err error) {
	before, err := regular.Read(file, maxConfig)
	switch {
	case err == nil && bytes.Equal(before, text):
		return false, nil
	case err == nil:
		return true, replace(file, before, text)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	path := temporary(file)
	if err = write(path, text, ownFile{}); err == nil {
		err = os.Rename(path, file)
	}
	if err != nil {
		return false, errors.Join(err, remove(path))
	}
	return true, syncDir(filepath.Dir(file))
}
