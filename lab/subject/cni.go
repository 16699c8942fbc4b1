package subject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tcpilot/tcpilot/internal/undo"
	"github.com/tcpilot/tcpilot/lab/topology"
)

const (
	// CNIEnv is the environment variable that names a directory of CNI plugins, which is
	// searched first.
	CNIEnv = "TCPILOT_LAB_CNI"
	// systemPlugins is where container runtimes look for plugins.
	systemPlugins = "/opt/cni/bin"

	ownPlugin  = "tcpilot-cni"
	ipamPlugin = "host-local"

	cniVersion  = "1.0.0" // of the CNI specification
	cniNetwork  = "lab"
	annotations = "io.kubernetes.cri.pod-annotations" // the capability's name, as containerd's
	podDevice   = "eth0"
	// cniLimit is how long ADD or DEL of one pod may take, on an emulated processor too.
	cniLimit = time.Minute
)

// validPlugin matches valid names of plugins. A plugin is a program of that name in one of the
// directories of plugins.
var validPlugin = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// setKeys are what the subject sets in a plugin's configuration.
var setKeys = []string{"type", "ipam", "capabilities", "dir", "socket", "cniVersion", "name"}

func (p Plugin) check() error {
	if !validPlugin.MatchString(p.Type) {
		return fmt.Errorf("cni: %q is not a valid name of a plugin", p.Type)
	}
	for _, key := range setKeys {
		if _, ok := p.Keys[key]; ok {
			return fmt.Errorf("cni: plugin %s: the lab sets %s itself", p.Type, key)
		}
	}
	return nil
}

// chain connects pods by a chain of CNI plugins, each run in the namespace of the pod's node as a
// container runtime runs it.
type chain struct {
	spec   Spec
	layout *topology.Layout
	home   *home
	path   []string // where the plugins are
	log    *tail    // what they write on standard error
}

// newChain finds the plugins. If one is missing, the error (ErrUnavailable) says which, and
// what to do.
func newChain(s Spec, w World, h *home) (*chain, error) {
	c := &chain{spec: s, layout: w.Layout, home: h, log: &tail{}}
	c.path = append(pluginDirs(), filepath.Dir(w.Binary), systemPlugins)
	for _, name := range append([]string{ipamPlugin}, c.types()...) {
		if _, err := c.find(name); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *chain) types() (list []string) {
	for _, p := range c.spec.Plugins {
		list = append(list, p.Type)
	}
	return list
}

// find finds the program of a plugin.
func (c *chain) find(name string) (string, error) {
	for _, dir := range c.path {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	what := "build the CNI project's plugins with `tools/deps cni`"
	if name == ownPlugin {
		what = "build it with `make`, which puts it beside tcpilot"
	}
	return "", fmt.Errorf("%w: the CNI plugin %s is not in %s: %s, or name its directory in %s", ErrUnavailable,
		name, strings.Join(c.path, ", "), what, CNIEnv)
}

// pluginDirs are the directory that the environment names, and that into which `tools/deps
// cni` builds.
func pluginDirs() (dirs []string) {
	if dir := os.Getenv(CNIEnv); dir != "" {
		dirs = append(dirs, dir)
	}
	if cache, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(cache, "tcpilot", "cni"))
	}
	return dirs
}

func (c *chain) begin(ctx context.Context, u *undo.Stack) error {
	for _, p := range c.layout.Pods {
		if err := c.add(ctx, p, u); err != nil {
			return fmt.Errorf("connect pod %s: %w", p.Name, err)
		}
	}
	return nil
}

// add runs ADD for a pod. DEL follows also after a failed ADD, as with container runtimes.
func (c *chain) add(ctx context.Context, p *topology.Pod, u *undo.Stack) error {
	dir, err := c.home.hostDir(p.Node.Name)
	if err != nil {
		return err
	}
	text, err := c.configure(p, dir)
	if err != nil {
		return err
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		return fmt.Errorf("read CNI configuration: %w", err)
	}
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: c.log}}
	cni := libcni.NewCNIConfigWithCacheDir(c.path, filepath.Join(dir, "cache"), run)
	attachment := c.attachment(p)
	u.Push("", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), cniLimit)
		defer cancel()
		err := p.Node.Do(func() error { return cni.DelNetworkList(ctx, list, attachment) })
		if err != nil {
			return fmt.Errorf("disconnect pod %s: %w", p.Name, err)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(ctx, cniLimit)
	defer cancel()
	var addr4, addr6 netip.Addr
	err = p.Node.Do(func() error {
		result, err := cni.AddNetworkList(ctx, list, attachment)
		if err != nil {
			return err
		}
		r, err := types100.GetResult(result)
		if err != nil {
			return err
		}
		addr4, addr6 = addresses(r)
		return nil
	})
	if err != nil {
		return err
	}
	if !addr4.IsValid() || !addr6.IsValid() {
		return errors.New("the plugins must give it an IPv4 and an IPv6 address")
	}
	p.SetAddrs(addr4, addr6)
	return nil
}

// addresses returns the first address of each family.
func addresses(r *types100.Result) (addr4, addr6 netip.Addr) {
	for _, ip := range r.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		switch a = a.Unmap(); {
		case a.Is4() && !addr4.IsValid():
			addr4 = a
		case a.Is6() && !addr6.IsValid():
			addr6 = a
		}
	}
	return addr4, addr6
}

// attachment is what a container runtime tells the plugins about a pod.
func (c *chain) attachment(p *topology.Pod) *libcni.RuntimeConf {
	own := c.spec.Annotations
	if own == nil {
		own = map[string]string{}
	}
	return &libcni.RuntimeConf{
		ContainerID:    c.layout.Net.ID() + "-" + p.Name,
		NetNS:          p.Path(),
		IfName:         podDevice,
		Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", cniNetwork}, {"K8S_POD_NAME", p.Name}},
		CapabilityArgs: map[string]any{annotations: own},
	}
}

// configure writes the network configuration of a node: the keys that the scenario has for
// each plugin, and the addresses and directories of this run.
func (c *chain) configure(p *topology.Pod, dir string) ([]byte, error) {
	f := files{dir: dir} // those of the daemon, if there is one
	var all []map[string]any
	for i, plugin := range c.spec.Plugins {
		keys := map[string]any{"type": plugin.Type}
		for key, value := range plugin.Keys {
			keys[key] = value
		}
		if i == 0 {
			keys["ipam"] = map[string]any{
				"type": ipamPlugin, "dataDir": filepath.Join(dir, "leases"),
				"ranges": [][]map[string]string{{{"subnet": p.Net4.String()}}, {{"subnet": p.Net6.String()}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
			}
		}
		if plugin.Type == ownPlugin {
			keys["dir"], keys["socket"], keys["timeout"] = f.pods(), f.socket(), "10s"
			keys["capabilities"] = map[string]bool{annotations: true}
		}
		all = append(all, keys)
	}
	text, err := json.Marshal(map[string]any{"cniVersion": cniVersion, "name": cniNetwork, "plugins": all})
	if err != nil {
		return nil, fmt.Errorf("write CNI configuration: %w", err)
	}
	return text, nil
}
