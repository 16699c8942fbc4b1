package config

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/tcpilot/tcpilot/internal/defaults"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// DefaultFile is the file that is read, if it exists, unless another is named.
const DefaultFile = "/etc/tcpilot/tcpilot.yaml"

// Config is the whole configuration. The decoder and the reference use its tags: key is the
// name in the file, min and max bound the value, is and oneof restrict text, doc describes it, reload says
// whether a reload puts it into force (see Reload).
type Config struct {
	Cgroup   string        `key:"cgroup" is:"path" doc:"cgroup2 directory whose sockets, and those below it, are tuned; empty is the root of the cgroup2 hierarchy, wherever it is mounted"`
	BPFFS    string        `key:"bpffs" is:"path" doc:"mount point of the BPF file system, where programs and maps are pinned"`
	RunDir   string        `key:"run_dir" is:"path" doc:"directory of the API socket and of the lock that prevents a second daemon"`
	StateDir string        `key:"state_dir" is:"path" doc:"directory in which what was learned is kept across restarts"`
	Mode     string        `key:"mode" reload:"yes" oneof:"tune observe" doc:"tune: do what the rules say; observe: take samples, learn, and show what would be done, but set nothing on any connection"`
	Interval time.Duration `key:"interval" min:"1s" max:"10m" off:"0" doc:"time between two samples of a live connection; 0 takes samples only when connections end"`
	Socket   Socket        `key:"socket" doc:"the unix sockets of the API: one for administrators, who may change something, and one for reading"`
	Metrics  Metrics       `key:"metrics" doc:"Prometheus metrics"`
	Log      Log           `key:"log" doc:"the daemon's log, written to standard error"`
	Learning Learning      `key:"learning" reload:"part" doc:"what is learned, per which path, and how carefully"`
	Buffers  Buffers       `key:"buffers" doc:"limits of the buffers of TCP connections"`
	Pods     Pods          `key:"pods" reload:"part" doc:"pods, and how their packets pass this host"`
	Host     Host          `key:"host" doc:"sysctls and routes that tcpilot changes while it runs, see host-profile.md"`
	// CongestionControls are those of tcpilot's own to load, with auto resolved.
	CongestionControls ControlList   `key:"congestion_controls" reload:"yes" doc:"congestion controls of tcpilot's own to load: auto is all that arms: auto can use, and those that the rules name; congestion-controls.md lists them"`
	BuiltinRules       bool          `key:"builtin_rules" reload:"yes" doc:"put the built-in rules before the file's: loopback (remote 127.0.0.0/8 or ::1: leave) and own-traffic (local port of metrics.listen: leave)"`
	Rules              []policy.Rule `key:"rules" reload:"yes" doc:"what to do with which connections; the first rule that matches counts"`
}

// Socket configures the API's socket.
type Socket struct {
	Path   string      `key:"path" is:"path" doc:"path of the administrators' socket; empty is tcpilot.sock in run_dir"`
	Mode   fs.FileMode `key:"mode" doc:"permissions of that socket, in octal; 0660 instead if group or admins is named"`
	Group  string      `key:"group" is:"group" doc:"group that owns that socket, by name or number; empty is that of admins, or the daemon's own"`
	Admins string      `key:"admins" is:"group" doc:"group whose members may change something: reload, detach, load programs and congestion controls; empty leaves it to root and the daemon's own user"`
	Read   ReadSocket  `key:"read" doc:"the socket for reading: nobody can change anything through it"`
}

// ReadSocket configures the API's socket for reading.
type ReadSocket struct {
	Path  string      `key:"path" is:"path" doc:"path of the socket; empty is beside the administrators' one: tcpilot-read.sock for tcpilot.sock"`
	Mode  fs.FileMode `key:"mode" doc:"permissions of the socket, in octal"`
	Group string      `key:"group" is:"group" doc:"group that owns the socket, by name or number; empty leaves it to the daemon's own"`
}

// Metrics configures the HTTP endpoint for Prometheus.
type Metrics struct {
	Listen   string `key:"listen" is:"listen" doc:"address and port to listen on; empty is off"`
	TopPaths int    `key:"top_paths" min:"0" max:"10000" doc:"paths that get labels of their own, most samples first, and pods, most connections first; the rest is summed up as other"`
}

// Log configures the daemon's log.
type Log struct {
	Level  slog.Level `key:"level" oneof:"debug info warn error" doc:"least severe records to write"`
	Format string     `key:"format" oneof:"text json" doc:"form of the records"`
}

// Learning configures the learner.
type Learning struct {
	Learner      string        `key:"learner" oneof:"thompson epsilon-greedy" doc:"algorithm that shares connections among arms; epsilon-greedy is the published one, kept for comparison"`
	HoldOut      float64       `key:"hold_out" reload:"yes" min:"0" max:"0.5" doc:"share of connections left at kernel defaults, to compare the others with; more on a new path, and where the default looks better, see learning.md; a rule can have its own"`
	Lease        time.Duration `key:"lease" min:"2s" max:"5m" doc:"how long the kernel uses policies if no daemon renews them"`
	PolicyTTL    time.Duration `key:"policy_ttl" min:"10s" max:"24h" doc:"how long the kernel uses a path's policy that is not renewed; the daemon renews each after half of that"`
	HalfLife     time.Duration `key:"half_life" min:"1m" max:"168h" doc:"time after which a sample counts half as much"`
	DrawKey      string        `key:"draw_key" doc:"secret that the hosts of a fleet share, so that at one time they draw the same congestion control for the same network; empty is a random one for each host"`
	SaveInterval time.Duration `key:"save_interval" min:"5s" max:"1h" doc:"time between two writes of what was learned to state_dir"`
	Paths        Paths         `key:"paths" doc:"which remote addresses belong to one path"`
}

// Buffers configures the limits of buffers (package buffers).
type Buffers struct {
	Adapt bool   `key:"adapt" doc:"raise the maxima of net.ipv4.tcp_rmem and net.ipv4.tcp_wmem in network namespaces whose connections are bound by them, and take the raises back if TCP is short of memory, and at the end"`
	Max   uint64 `key:"max" min:"4MiB" max:"1GiB" doc:"greatest maximum to which they are raised"`
}

// Pods configures what is done for pods (docs/pods.md).
type Pods struct {
	Dir         string         `key:"dir" is:"path" doc:"directory of the records of pods, which the CNI plugin tcpilot-cni writes; no pods are known if it does not exist"`
	Bandwidth   string         `key:"bandwidth" reload:"yes" oneof:"off on" doc:"on: limit the bandwidth of pods as their annotations kubernetes.io/egress-bandwidth and kubernetes.io/ingress-bandwidth, or the container runtime, ask"`
	HostRouting string         `key:"host_routing" reload:"yes" oneof:"off on" doc:"on: packets of pods are routed by eBPF programs at the pods' devices, and do not pass through netfilter and the rest of the host's stack (pods.md lists what is bypassed)"`
	BigTCP      string         `key:"big_tcp" reload:"yes" oneof:"off on" doc:"on: TCP packets of pods have up to 192 KB until they leave the host, where they are segmented (BIG TCP); pods.md says what has to support it, and what is changed"`
	Devices     []string       `key:"devices" reload:"yes" is:"device" doc:"network devices that lead to other hosts, for host_routing and big_tcp; without any only packets from pod to pod of this host are routed"`
	Networks    []netip.Prefix `key:"networks" reload:"yes" doc:"addresses outside this host with which pods exchange packets without NAT, such as the pods of other hosts, for host_routing; packets of all other addresses take the host's stack"`
	NodeRoutes  string         `key:"node_routes" oneof:"off on" doc:"on: keep a route to the pods of each other node of the cluster that is on the same link; for tcpilot-cni as the main plugin, with kubernetes, see kubernetes.md"`
	Kubernetes  Kubernetes     `key:"kubernetes" doc:"the API server from which annotations of pods are read, and followed when they change, see kubernetes.md; without one, they are what the container runtime passed when the pod started"`
}

// Kubernetes configures how the API server is reached.
type Kubernetes struct {
	InCluster  string `key:"in_cluster" oneof:"off on" doc:"on: tcpilot runs in a pod of the cluster, and uses its service account"`
	Kubeconfig string `key:"kubeconfig" is:"path" doc:"kubeconfig file to use instead; empty is none"`
	Node       string `key:"node" doc:"name of this node; empty is the environment variable NODE_NAME, or the host's name"`
}

// Used reports whether an API server is to be asked.
func (k *Kubernetes) Used() bool { return k.InCluster == "on" || k.Kubeconfig != "" }

// LimitsBandwidth reports whether pods get the limits that are asked for.
func (p *Pods) LimitsBandwidth() bool { return p.Bandwidth == "on" }

// RoutesNodes reports whether there are to be routes to the pods of other nodes.
func (p *Pods) RoutesNodes() bool { return p.NodeRoutes == "on" }

// RoutesHost reports whether packets of pods are to be routed by programs.
func (p *Pods) RoutesHost() bool { return p.HostRouting == "on" }

// HasBigTCP reports whether pods may have packets above 64 KB.
func (p *Pods) HasBigTCP() bool { return p.BigTCP == "on" }

// Host configures the host profile.
type Host struct {
	NetNS          string         `key:"netns" oneof:"own all" doc:"own: in the daemon's network namespace; all: in every one, except where its owner has set a value"`
	Sysctls        HostSysctls    `key:"sysctls" doc:"value by name; the original values are restored at the end"`
	UsecTimestamps []netip.Prefix `key:"usec_timestamps" doc:"prefixes of hosts with Linux 6.7 or later: connections by routes within them use timestamps in microseconds; the routes are restored at the end (see host-profile.md)"`
}

// Paths defines which remote addresses form a path.
type Paths struct {
	IPv4      int        `key:"ipv4" min:"8" max:"32" doc:"prefix length of a path's IPv4 addresses"`
	IPv6      int        `key:"ipv6" min:"16" max:"128" doc:"prefix length of a path's IPv6 addresses"`
	Overrides []Override `key:"overrides" doc:"other lengths for the addresses of some prefixes; the longest prefix counts"`
	Limit     int        `key:"limit" min:"64" max:"1048576" doc:"paths to remember; the least recently used is dropped first"`
}

// Override is the path length within one prefix.
type Override struct {
	Prefix netip.Prefix `key:"prefix" doc:"the addresses that it is for"`
	Bits   int          `key:"bits" min:"1" max:"128" doc:"prefix length of their paths, not shorter than prefix itself"`
}

// Bits returns the prefix length of addr's path.
func (p *Paths) Bits(addr netip.Addr) int {
	addr = addr.Unmap().WithZone("")
	bits, longest := p.IPv6, -1
	if addr.Is4() {
		bits = p.IPv4
	}
	for _, o := range p.Overrides {
		if o.Prefix.Bits() > longest && o.Prefix.Contains(addr) {
			bits, longest = o.Bits, o.Prefix.Bits()
		}
	}
	return bits
}

// MaxFile is the greatest length of a configuration file, bytes: some 50,000 prefixes fit.
const MaxFile = 1 << 20

// Load reads the configuration file at path. Mistakes in it come back as yamlfile.Errors.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Written returns the values of set as in the file at path, by rule and field, because the
// values that Load returns have no unit.
func Written(path string) (map[string]map[string]string, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	_, raw, err := parseRaw(path, data)
	if err != nil {
		return nil, err
	}
	written := make(map[string]map[string]string)
	for i := range raw.Rules {
		if s := raw.Rules[i].Set; s != nil {
			written[raw.Rules[i].Name] = s.written
		}
	}
	return written, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}

// Parse reads a configuration; name is what errors call it. The mistakes in it
// come back as yamlfile.Errors, all of them.
func Parse(name string, data []byte) (*Config, error) {
	c, _, err := parseRaw(name, data)
	return c, err
}

func parseRaw(name string, data []byte) (*Config, *fileRules, error) {
	y := &yamlfile.Decoder{File: name}
	c, raw := decode(y, y.Read(data, MaxFile))
	if err := y.Err(); err != nil {
		return nil, nil, err
	}
	return c, raw, nil
}

// Check checks a configuration that is part of another file: y collects its mistakes.
func Check(y *yamlfile.Decoder, n *yamlfile.Node) { decode(y, n) }

// decode decodes a tree; nil is that of an empty file.
func decode(y *yamlfile.Decoder, root *yamlfile.Node) (*Config, *fileRules) {
	d := newDecoder(y)
	c, raw := base(), &fileRules{}
	if root != nil {
		d.structs(root, nil, reflect.ValueOf(raw).Elem(), reflect.ValueOf(c).Elem())
	}
	c.finish(d, raw)
	return c, raw
}

// Default is the configuration of an empty file.
func Default() *Config {
	c, _ := decode(&yamlfile.Decoder{}, nil)
	return c
}

// base has the defaults that do not depend on other keys.
func base() *Config {
	return &Config{
		BPFFS:        "/sys/fs/bpf",
		RunDir:       defaults.RunDir,
		StateDir:     defaults.StateDir,
		Mode:         "tune",
		Interval:     5 * time.Second,
		Socket:       Socket{Mode: 0o600, Read: ReadSocket{Mode: 0o660}},
		Metrics:      Metrics{Listen: "127.0.0.1:9732", TopPaths: 20},
		Log:          Log{Level: slog.LevelInfo, Format: "text"},
		BuiltinRules: true,
		Buffers:      Buffers{Max: 64 << 20},
		Pods:         Pods{Dir: defaults.PodsDir, Bandwidth: "on", HostRouting: "off", BigTCP: "off", NodeRoutes: "off", Kubernetes: Kubernetes{InCluster: "off"}},
		Host:         Host{NetNS: "own"},
		Learning: Learning{
			Learner:      "thompson",
			HoldOut:      0.02,
			Lease:        10 * time.Second,
			PolicyTTL:    10 * time.Minute,
			HalfLife:     6 * time.Hour,
			SaveInterval: time.Minute,
			Paths:        Paths{IPv4: 24, IPv6: 48, Limit: 16384},
		},
	}
}

// finish sets the values that depend on other keys, and checks that the keys are consistent.
func (c *Config) finish(d *decoder, raw *fileRules) {
	if c.Socket.Path == "" {
		c.Socket.Path = filepath.Join(c.RunDir, defaults.SocketName)
	}
	if c.Socket.Group == "" {
		c.Socket.Group = c.Socket.Admins
	}
	if _, written := d.at[&c.Socket.Mode]; c.Socket.Group != "" && !written {
		c.Socket.Mode = 0o660
	}
	l := &c.Learning
	if l.PolicyTTL < l.Lease {
		d.Fail(d.at[&l.PolicyTTL], fmt.Sprintf("%s is shorter than learning.lease, %s", shortDuration(l.PolicyTTL), shortDuration(l.Lease)),
			"write a policy_ttl of at least the lease")
	}
	c.checkOverrides(d)
	if c.Pods.RoutesNodes() && !c.Pods.Kubernetes.Used() {
		d.Fail(d.at[&c.Pods.NodeRoutes], "node_routes is on, and no API server is configured, which knows the nodes", "write pods.kubernetes, such as {in_cluster: on}")
	}
	c.Rules = buildRules(d, c, raw)
	c.finishControls(d, raw)
}

func (c *Config) checkOverrides(d *decoder) {
	seen := make(map[netip.Prefix]bool)
	for i := range c.Learning.Paths.Overrides {
		o := &c.Learning.Paths.Overrides[i]
		if !o.Prefix.IsValid() || o.Bits == 0 {
			if !d.broken[o] {
				d.Fail(d.at[o], "prefix or bits is missing", "write both, such as {prefix: 10.0.0.0/8, bits: 16}")
			}
			continue
		}
		if least, most := o.Prefix.Bits(), o.Prefix.Addr().BitLen(); o.Bits < least || o.Bits > most {
			d.Fail(d.at[&o.Bits], fmt.Sprintf("%d does not fit %s", o.Bits, o.Prefix),
				fmt.Sprintf("write %d to %d", max(1, least), most))
		}
		if seen[o.Prefix] {
			d.Fail(d.at[&o.Prefix], fmt.Sprintf("%s is in the list twice", o.Prefix), "remove one of them")
		}
		seen[o.Prefix] = true
	}
}
