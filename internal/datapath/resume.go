package datapath

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// resume is the control by which windows are set in mid-flight (bpf/sockops/resume.bpf.c). The kernel unregisters it at the end
// of the process: it is pinned nowhere.
type resume struct {
	name tcp.CC
	ops  *ebpf.Map
	link link.Link
	err  error // why there is none; nil if there is
}

// newResume chooses a name. The kernel has one name space for the controls of all processes, so that each one is new.
func newResume() (r resume) {
	var random [3]byte
	_, _ = rand.Read(random[:]) // never fails
	copy(r.name[:], congestion.WindowSetter+hex.EncodeToString(random[:]))
	return r
}

// loadResume registers the control and tells the programs. Without it, no window is raised after the first round trip.
func (d *Datapath) loadResume() {
	r := &d.resume
	if r.err = r.register(d.maps); r.err == nil {
		r.err = d.objs.Resumes.Set(uint32(1))
	}
	if r.err != nil {
		d.log.Warn("congestion windows are not raised after the first round trip", "error", r.err)
	}
}

// closeResume has the programs, which may stay attached, raise no more windows.
func (d *Datapath) closeResume() error {
	if d.resume.link == nil {
		return d.resume.close()
	}
	return errors.Join(d.objs.Resumes.Set(uint32(0)), d.resume.close())
}

// register loads the control with the maps of the hooks.
func (r *resume) register(m *sockopsMaps) error {
	spec, err := loadResume()
	if err != nil {
		return fmt.Errorf("read embedded object resume: %w", err)
	}
	ops := spec.Maps[resumeMapTcpilotResume]
	ops.Flags |= unix.BPF_F_LINK // its registration ends with the link
	value, _ := ops.Contents[0].Value.([]byte)
	at := bytes.Index(value, append([]byte(resumeMapTcpilotResume), 0))
	if at < 0 {
		return errors.New("embedded object resume has another name than its map")
	}
	copy(value[at:], r.name[:])
	coll, err := ebpf.NewCollectionWithOptions(spec, *withMaps(spec, m.replacements(spec)))
	if errors.Is(err, unix.EINVAL) && strings.Contains(err.Error(), "map create") {
		return fmt.Errorf("load resume: this kernel cannot register a congestion control by a link (needs Linux 6.4): %w", err)
	}
	if err != nil {
		return explainLoad("resume", err)
	}
	defer coll.Close()
	r.ops = coll.DetachMap(resumeMapTcpilotResume)
	if r.link, err = link.AttachStructOps(link.StructOpsOptions{Map: r.ops}); err != nil {
		return fmt.Errorf("register congestion control %s: %w", r.name, err)
	}
	return nil
}

// close closes the link before the map, as the kernel counts handles of the map.
func (r *resume) close() error {
	var errs []error
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	if r.ops != nil {
		errs = append(errs, r.ops.Close())
	}
	r.link, r.ops = nil, nil
	return errors.Join(errs...)
}
