package datapath

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// pinVersion is part of the pin directory's name: maps are caches, and are rebuilt with
// every version of bpf/include/abi.h, never migrated.
var pinVersion = fmt.Sprintf("v%d", abiAbiLimitsABI_VERSION)

// Options say where the datapath lives.
type Options struct {
	// Cgroup is the cgroup v2 directory whose connections are handled, those
	// below it included.
	Cgroup string
	// BPFFS is a directory in a mounted BPF file system. Pins go to
	// BPFFS/tcpilot/VERSION (pinVersion).
	BPFFS string
	// MaxPolicies is the room in the policy table, in rows.
	MaxPolicies int
	// SliceKey is the key of the draws of slices. Hosts with the same key draw the same for
	// one network. All zero: a random key.
	SliceKey [16]byte
	// Release calls the function of that name before pinned maps are replaced by others; nil: running connections keep what
	// tcpilot has set.
	Release func() error
	Log     *slog.Logger
}

// Datapath is the loaded and attached programs and their maps.
//
// Methods that write may be called from one goroutine at a time, Read from
// another, Counters and Programs from any.
type Datapath struct {
	log  *slog.Logger
	dir  string // pin directory
	objs sockopsObjects
	maps *sockopsMaps
	live *liveIterator // nil if the kernel has no TCP iterator
	// Why a program is not available; nil if it is.
	liveErr, reportErr, endsErr, undoneErr error

	sockops, report, reset, errors, undone link.Link
	spare                                  link.Link // nil as long as it is not needed
	spareErr                               error     // why it could not be attached
	spareAt                                time.Time // when that is tried again
	sparePause                             time.Duration
	missed                                 uint64 // ends of connections missed before there was a spare
	cgroupID                               uint64 // of the cgroup that sockops is attached to
	adopted                                bool
	attachedAt                             time.Time
	ccs                                    ccTable
	badSamples                             counter
	adoption                               adoption
	lowats                                 lowats
	listeners                              listeners
	walking                                walking

	loading sync.Mutex // users' objects are loaded one at a time; lock it before mu
	mu      sync.Mutex // do nothing slow under it: renewing the lease needs it
	config  abiRuntimeConfig
	table   writtenTable // in force, as this process has written it
	changes netnsChanges
	begun   map[uint32]ClassCount // by class: what its place had counted before, of another class
	flows   flows
	limits  limits
	resume  resume
	user    map[string]*userObject
	closed  bool
}

// Open loads the programs, takes over maps and links that an earlier process left
// pinned, and attaches the programs. Until the first SetLease they do nothing.
func Open(opt Options) (*Datapath, error) {
	d := &Datapath{log: opt.Log, dir: filepath.Join(PinDir(opt.BPFFS), pinVersion), user: map[string]*userObject{},
		walking: walking{begun: make(chan struct{}, 1)}}
	d.maps = &d.objs.sockopsMaps
	if err := removeOtherVersions(filepath.Dir(d.dir)); err != nil {
		return nil, err
	}
	_, err := os.Stat(d.dir)
	first := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	if err := d.start(opt); err != nil {
		if first { // otherwise programs of an earlier process still use these maps
			err = errors.Join(err, os.RemoveAll(d.dir)) // before Close, as in Detach
		}
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Datapath) start(opt Options) error {
	if err := d.load(opt); err != nil {
		return err
	}
	if err := d.readConfig(); err != nil {
		return err
	}
	if err := d.drawKeys(opt.SliceKey); err != nil {
		return err
	}
	if err := d.attach(opt.Cgroup); err != nil {
		return err
	}
	d.loadLive()
	if err := d.openFlows(); err != nil {
		return err
	}
	d.loadLimits()
	d.loadResume()
	d.adoptUser()
	return nil
}

// load loads sockops.bpf.o with the pinned maps of an earlier process. Incompatible pins
// are removed and created again. Before that, running connections get back what they had, because the new maps do not tell
// what tcpilot has set.
func (d *Datapath) load(opt Options) error {
	d.resume = newResume()
	spec, err := sockopsSpec(d.resume.name)
	if err != nil {
		return err
	}
	for name, m := range spec.Maps {
		if shared(name) {
			m.Pinning = ebpf.PinByName
		}
	}
	if opt.MaxPolicies > 0 {
		spec.Maps["path_policies"].MaxEntries = uint32(opt.MaxPolicies)
		spec.Maps["flow_counts"].MaxEntries = uint32(opt.MaxPolicies) + 1 // row 0 is not used
	}
	opts := &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: d.dir}}
	err = spec.LoadAndAssign(&d.objs, opts)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		d.log.Warn("pinned maps are of another build, starting with new ones", "dir", d.dir, "error", err)
		if opt.Release != nil {
			if err := opt.Release(); err != nil {
				d.log.Warn("running connections keep what was set", "error", err)
			}
		}
		if err := removePinnedMaps(d.dir, spec); err != nil {
			return err
		}
		err = spec.LoadAndAssign(&d.objs, opts)
	}
	return explainLoad("sockops", err)
}

// shared reports whether a map outlives its process. Sections of variables
// (.rodata, .bss) belong to one build alone.
func shared(name string) bool { return name[0] != '.' }

// sockopsSpec is the embedded object with its knobs set, and counters for each CPU. resume is the name of that control.
func sockopsSpec(resume tcp.CC) (*ebpf.CollectionSpec, error) {
	spec, err := loadSockops()
	if err != nil {
		return nil, fmt.Errorf("read embedded object sockops: %w", err)
	}
	before, after := optionMasks()
	for name, value := range map[string]any{
		sockopsVarOptions:       optionTable(),
		sockopsVarOptionsBefore: before,
		sockopsVarOptionsAfter:  after,
		sockopsVarJiffyUs:       jiffyMicros(),
		sockopsVarResumeCc:      resume,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	spec.Maps["counters"].MaxEntries = uint32(cpus)
	return spec, nil
}

// explainLoad adds the probable cause of a failed load, and what to do about it.
func explainLoad(object string, err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &verifier):
		return fmt.Errorf("load %s: this kernel's verifier refused it: %w", object, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("load %s: needs root (CAP_SYS_ADMIN): %w", object, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("load %s: the kernel lacks a feature that it needs ('tcpilot doctor' lists them): %w", object, err)
	}
	return fmt.Errorf("load %s: %w", object, err)
}

func (d *Datapath) readConfig() error {
	if err := d.maps.RuntimeConfig.Lookup(uint32(0), &d.config); err != nil {
		return fmt.Errorf("read runtime configuration: %w", err)
	}
	for i := range min(d.config.NumCc, uint32(maxCC)) {
		if _, err := d.ccs.add(tcp.CC(d.config.Cc[i])); err != nil {
			return err
		}
	}
	return nil
}

// drawKeys writes the keys of draws. The key for connections stays as long as the maps, so
// that a connection in its handshake draws the same when it is established.
func (d *Datapath) drawKeys(slice [16]byte) error {
	if slice == [16]byte{} {
		rand.Read(slice[:]) // never fails
	}
	if d.config.DrawKey == [2]uint64{} {
		var key [16]byte
		rand.Read(key[:])
		d.config.DrawKey = keyWords(key)
	}
	d.config.SliceKey = keyWords(slice)
	return d.putConfig()
}

// keyWords is a key in the form of SipHash: two little-endian words.
func keyWords(key [16]byte) [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])}
}

// Close releases the process's own handles; what is pinned stays in force until
// its lease ends.
func (d *Datapath) Close() error {
	var errs []error
	if d.live != nil {
		errs = append(errs, d.live.Close())
	}
	for _, l := range []link.Link{d.spare, d.undone, d.errors, d.reset, d.report, d.sockops} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	errs = append(errs, d.limits.close(), d.closeResume())
	d.mu.Lock()
	d.closed = true
	for _, u := range d.user {
		errs = append(errs, u.close())
	}
	errs = append(errs, d.flows.close())
	d.mu.Unlock()
	errs = append(errs, d.objs.Close())
	d.objs.sockopsVariables = sockopsVariables{} // mapped memory holds a map
	return errors.Join(errs...)
}

// Detach removes everything from the kernel and closes. Pins are removed first, for the reason at unpin.
func (d *Datapath) Detach() error {
	base := filepath.Dir(d.dir)
	return errors.Join(Remove(filepath.Dir(base)), d.Close())
}

// Remove removes everything that any version of tcpilot has pinned under bpffs, to detach
// when no daemon runs. It is not an error if there is nothing. The directory itself stays,
// because the caller may hold a lock on it.
func Remove(bpffs string) error {
	base := PinDir(bpffs)
	entries, err := os.ReadDir(base)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pins: %w", err)
	}
	for _, e := range entries {
		if err := unpin(filepath.Join(base, e.Name())); err != nil {
			return fmt.Errorf("remove pins: %w", err)
		}
	}
	return nil
}

// unpin removes a directory of pins. It holds its links meanwhile: the kernel detaches a link at once if it is closed
// last, and later, by a work queue, if it is unpinned last (bpf_link_put).
func unpin(dir string) error {
	var links []link.Link
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if l, err := link.LoadPinnedLink(file, nil); err == nil { // else it is a map or a program
			links = append(links, l)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, os.RemoveAll(dir))
	for _, l := range links {
		err = errors.Join(err, l.Close())
	}
	return err
}

// versionPins matches the names of the pin directories of ABI versions. The other
// directories beside them outlive versions: users' own objects, and congestion controls.
var versionPins = regexp.MustCompile(`^v[0-9]+$`)

// removeOtherVersions drops the pins of builds with another ABI. Removing a
// link's last pin detaches it.
func removeOtherVersions(base string) error {
	entries, err := os.ReadDir(base)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read pins: %w", err)
	}
	for _, e := range entries {
		if e.Name() == pinVersion || !versionPins.MatchString(e.Name()) {
			continue
		}
		if err := unpin(filepath.Join(base, e.Name())); err != nil {
			return fmt.Errorf("remove pins of another version: %w", err)
		}
	}
	return nil
}

func removePinnedMaps(dir string, spec *ebpf.CollectionSpec) error {
	for name := range spec.Maps {
		if !shared(name) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pinned map: %w", err)
		}
	}
	return nil
}
