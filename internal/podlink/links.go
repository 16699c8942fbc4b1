package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/jiffies"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// Links are the loaded programs, their maps, and the devices that they are attached to. Its methods
// may be called from one goroutine at a time, Counters and those of meters from any.
type Links struct {
	reading   sync.RWMutex // of counters and meters: maps must not be closed meanwhile
	log       *slog.Logger
	dir       string // of pins
	objs      podObjects
	programs  programs
	devices   table[uint32, abiDevice]
	addresses table[[16]byte, uint32]
	networks  table[abiNetwork, uint8]
	meters    meters
	found     map[place]pair // verified pairs of devices
	way       way
	held      map[hook]bool // where programs of this process are attached
	adopted   bool          // programs of an earlier process were taken over
	swept     bool          // removeEarlier is done
	// noConntrack says why the kernel cannot be asked whether it translates a connection.
	noConntrack error
}

// place is where a record says that a pod's device is.
type place struct {
	cookie    uint64
	host, pod int
}

// version is part of the name of the directory with the maps, which are never migrated.
var version = fmt.Sprintf("v%d", abiPodLimitsPOD_ABI_VERSION)

func (l *Links) mapPins() string  { return filepath.Join(l.dir, version) }
func (l *Links) linkPins() string { return filepath.Join(l.dir, "links") }

// Open loads the programs with the maps that an earlier process left pinned below dir, a directory of
// a BPF file system. What that process attached stays as it is until Set.
func Open(dir string, log *slog.Logger) (*Links, error) {
	l := &Links{log: log, dir: dir, programs: named(), found: map[place]pair{}, held: map[hook]bool{}}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Links) open() error {
	for _, dir := range []string{l.mapPins(), l.linkPins()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create pin directory: %w", err)
		}
	}
	if err := l.load(l.mapPins()); err != nil {
		return err
	}
	l.way = wayOf(l.linkPins())
	err := l.tryAttach()
	if err != nil {
		return err
	}
	if l.devices, err = openTable[uint32, abiDevice](l.objs.PodDevices); err != nil {
		return err
	}
	if l.addresses, err = openTable[[16]byte, uint32](l.objs.PodAddresses); err != nil {
		return err
	}
	if l.networks, err = openTable[abiNetwork, uint8](l.objs.PodNetworks); err != nil {
		return err
	}
	return l.meters.open(l.objs.PodMeters)
}

// load loads the programs; pins is the directory of their maps, empty for none. If the kernel lacks the functions for
// connection tracking, it loads programs that cannot route.
func (l *Links) load(pins string) error {
	tried := l.loadWith(pins, true)
	if tried == nil {
		return nil
	}
	if err := l.loadWith(pins, false); err != nil {
		return err
	}
	l.noConntrack = fmt.Errorf("%w: %w", errNoConntrack, tried)
	return nil
}

func (l *Links) loadWith(pins string, conntrack bool) error {
	spec, err := loadPod()
	if err != nil {
		return fmt.Errorf("read embedded object pod: %w", err)
	}
	for name, value := range map[string]any{"has_conntrack": conntrack, "flow_seed": rand.Uint32(), "jiffy_us": jiffies.Micros()} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}}
	// The cache of routes and .rodata belong to one process.
	shared := func(name string) bool { return pins != "" && name[0] != '.' && name != "pod_flows" }
	for name, m := range spec.Maps {
		if shared(name) {
			m.Pinning = ebpf.PinByName
		}
	}
	err = spec.LoadAndAssign(&l.objs, opts)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		l.log.Warn("pinned maps of pods are of another build, starting with new ones", "dir", pins, "error", err)
		for name := range spec.Maps {
			if err := os.Remove(filepath.Join(pins, name)); shared(name) && err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove pinned map: %w", err)
			}
		}
		err = spec.LoadAndAssign(&l.objs, opts)
	}
	if err != nil {
		return fmt.Errorf("load programs of pods' devices: %w", err)
	}
	l.programs.podOut.prog, l.programs.netkitOut.prog = l.objs.TcpilotPodOut, l.objs.TcpilotNkOut
	l.programs.podIn.prog, l.programs.wireIn.prog = l.objs.TcpilotPodIn, l.objs.TcpilotWireIn
	for _, p := range l.programs.all() {
		info, err := p.prog.Info()
		if err != nil {
			return fmt.Errorf("read program info: %w", err)
		}
		p.id, _ = info.ID()
	}
	return nil
}

// Pod is what is wanted for a pod.
type Pod struct {
	*pod.Pod
	Route  bool          // its packets may be routed without the host's stack
	Limits pod.Bandwidth // of all its packets
	Big    bool          // its packets above 64 KB are counted
}

// Wanted is what is to be in force.
type Wanted struct {
	Pods     []Pod
	Devices  []string       // names of the devices that lead to other hosts
	Networks []netip.Prefix // that pods reach without NAT
}

// Missing is the part of Wanted that is not in force, and why.
type Missing struct {
	Pods    map[uint64]error // by cookie
	Routes  map[uint64]error // of pods whose limits are in force, and whose packets are not routed, by cookie
	Devices map[string]error // by name
}

// goal is what the maps should contain, and where programs should be.
type goal struct {
	devices   map[uint32]abiDevice
	addresses map[[16]byte]uint32
	networks  map[abiNetwork]uint8
	metered   map[uint32]bool // devices of pods with a limit, or packets above 64 KB
	hooks     map[hook]bool
	found     map[place]pair
}

// Set puts what is wanted into force, and only that. Programs are attached after the maps have the rows
// that they need; rows that nothing needs any more are deleted last.
func (l *Links) Set(w *Wanted) (Missing, error) {
	missing := Missing{map[uint64]error{}, map[uint64]error{}, map[string]error{}}
	g := goal{map[uint32]abiDevice{}, map[[16]byte]uint32{}, map[abiNetwork]uint8{}, map[uint32]bool{}, map[hook]bool{}, map[place]pair{}}
	for _, n := range w.Networks {
		g.networks[networkOf(n)] = familyOf(n)
	}
	// Without a network's row, its packets take the host's stack. So old rows can be deleted first, to make room.
	errNetworks := errors.Join(l.networks.trim(g.networks), l.networks.add(g.networks))
	for _, name := range w.Devices {
		if err := l.setOuter(&g, name); err != nil {
			missing.Devices[name] = err
		}
	}
	// The newest first, whose address it is if an earlier pod is not removed yet.
	pods := slices.SortedStableFunc(slices.Values(w.Pods), func(a, b Pod) int {
		switch {
		case a.AddedAfter(b.Pod):
			return -1
		case b.AddedAfter(a.Pod):
			return 1
		}
		return 0
	})
	for i := range pods {
		p := &pods[i]
		if err := g.addressTaken(p); err != nil {
			missing.Routes[p.Cookie], p.Route = err, false
		}
		if err := l.setPod(&g, p); err != nil {
			missing.Pods[p.Cookie] = err
		}
	}
	l.found = g.found
	return missing, errors.Join(errNetworks, l.addresses.trim(g.addresses), l.devices.trim(g.devices), l.meters.trim(g.metered),
		l.release(g.hooks), l.removeEarlier(g.hooks), l.removeOtherVersions())
}

// release detaches this process's programs from all hooks that are not in keep.
func (l *Links) release(keep map[hook]bool) error {
	err := l.way.trim(l.held, keep)
	if err == nil {
		l.held = keep
	}
	return err
}

func (l *Links) setOuter(g *goal, name string) error {
	d, err := outer(name)
	if err != nil {
		return err
	}
	return l.setDevice(g, d.Index, abiDevice{Flags: uint32(abiDeviceFlagsDEVICE_ROUTED | abiDeviceFlagsDEVICE_OUTER), HostMac: d.MAC}, &l.programs.wireIn)
}

// addressTaken returns an error if the packets of a pod cannot be routed, because a later pod has one of its addresses.
func (g *goal) addressTaken(p *Pod) error {
	for _, a := range p.Addresses {
		if _, taken := g.addresses[a.Addr().As16()]; taken && p.Route {
			return fmt.Errorf("another pod has its address %s", a.Addr())
		}
	}
	return nil
}

func (l *Links) setPod(g *goal, p *Pod) error {
	if _, taken := g.devices[uint32(p.HostIndex)]; taken {
		return fmt.Errorf("another pod has its device %d, or it is named as one that leads to other hosts", p.HostIndex)
	}
	where := place{p.Cookie, p.HostIndex, p.Index}
	devices, known := l.found[where]
	// If the program is attached, the index still belongs to the device that was verified, because a link or filter
	// ends with its device.
	if _, attached, err := l.way.attached(&l.programs.podIn, p.HostIndex); err != nil || !attached || !known {
		if devices, err = find(p.Pod); err != nil {
			return err
		}
	}
	d := abiDevice{Mac: devices.pod.MAC, HostMac: devices.host.MAC}
	rows := map[[16]byte]uint32{}
	if p.Route {
		d.Flags |= uint32(abiDeviceFlagsDEVICE_ROUTED)
		for _, a := range p.Addresses {
			rows[a.Addr().As16()] = uint32(p.HostIndex)
		}
	}
	if p.Big {
		d.Flags |= uint32(abiDeviceFlagsDEVICE_BIG)
	}
	if p.Limits != (pod.Bandwidth{}) || p.Big {
		d.Egress, d.Ingress = p.Limits.Egress/8, p.Limits.Ingress/8
		if err := l.meters.add(uint32(p.HostIndex)); err != nil {
			return err
		}
		g.metered[uint32(p.HostIndex)] = true
	}
	out, other := l.programs.out(p.Pod, devices.host)
	if err := l.setDevice(g, p.HostIndex, d, out, &l.programs.podIn); err != nil {
		return err
	}
	if !known { // an earlier process's would count what the pod sends as well; one of this process goes at the end
		ours, _, _ := l.way.attached(other, p.HostIndex) // an error: the device has no such hook
		if err := detachAll(ours); err != nil {
			return err
		}
	}
	g.found[where] = devices
	maps.Copy(g.addresses, rows)
	return l.addresses.add(rows)
}

// setDevice attaches programs to a device. The device is in the goal only if all of them are attached, so that
// both directions of a connection are treated alike.
func (l *Links) setDevice(g *goal, ifindex int, d abiDevice, programs ...*program) error {
	d.Index = uint32(ifindex)
	row := map[uint32]abiDevice{d.Index: d}
	if err := l.devices.add(row); err != nil {
		return err
	}
	for _, p := range programs {
		if err := l.attach(p, ifindex); err != nil {
			return err
		}
	}
	maps.Copy(g.devices, row)
	for _, p := range programs {
		g.hooks[hook{p.name, ifindex}] = true
	}
	return nil
}

// familyOf is the value of a network's row.
func familyOf(p netip.Prefix) uint8 {
	if p.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func networkOf(p netip.Prefix) abiNetwork {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return abiNetwork{Prefixlen: uint32(bits), Addr: p.Masked().Addr().As16()}
}

// removeOtherVersions drops the maps of other builds, which no program uses any more.
func (l *Links) removeOtherVersions() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("list pins of pods: %w", err)
	}
	for _, e := range entries {
		if path := filepath.Join(l.dir, e.Name()); path != l.mapPins() && path != l.linkPins() {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove pins of another version: %w", err)
			}
		}
	}
	return nil
}

// Close releases the process's own handles; what is attached stays.
func (l *Links) Close() error {
	l.reading.Lock()
	defer l.reading.Unlock()
	return l.objs.Close()
}

// Detach gives all pods back to the host's stack, and closes.
func (l *Links) Detach() error {
	err := l.Close()
	_, removed := remove(l.way, l.dir)
	return errors.Join(err, removed)
}

// errNoConntrack: the kernel lacks bpf_skb_ct_lookup or bpf_ct_change_timeout (Linux 6.0), by which the programs ask.
var errNoConntrack = errors.New("programs cannot ask this kernel whether it translates addresses of a connection (is the kernel module nf_conntrack loaded, and has it BTF?)")

// CanRoute returns why packets cannot be routed without the host's stack; nil if they can.
func (l *Links) CanRoute() error { return l.noConntrack }

// Try returns why this kernel cannot have programs on pods' devices, or cannot route by them; nil if it can.
func Try() error {
	l := Links{programs: named(), way: wayOf("")}
	err := l.load("")
	defer l.Close()
	if err != nil {
		return err
	}
	if err := l.tryAttach(); err != nil {
		return err
	}
	return l.CanRoute()
}

// tryAttach attaches a program in a network namespace of its own, to explain at once why a kernel
// cannot do it.
func (l *Links) tryAttach() error {
	err := netns.InNew(func() error { return l.way.try(&l.programs.podOut, loopback) })
	if _, classic := l.way.(filters); classic && err != nil {
		return fmt.Errorf("this kernel has no tcx links (Linux 6.6), and does not take tc filters in their place: %w", err)
	}
	return err
}

// Remove detaches all programs of tcpilot from the devices of this network namespace, and removes the
// pins below dir, to give pods back to the host's stack. It is not an error if there is nothing;
// removed says whether there was anything.
func Remove(dir string) (removed bool, err error) { return remove(wayOf(""), dir) }

func remove(by way, dir string) (removed bool, err error) {
	var errs []error
	programs := named()
	err = programs.eachAttached(by, func(_ hook, ours []attachment) {
		removed = true
		errs = append(errs, detachAll(ours))
	})
	if _, err := os.Stat(dir); err == nil {
		removed = true
	}
	return removed, errors.Join(append(errs, err, os.RemoveAll(dir))...)
}
