package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

const (
	// releaseTime is how long Release waits for connections that recover from losses: a few round trips of most. A stop
	// should take less than a second.
	releaseTime  = 500 * time.Millisecond
	releasePause = 20 * time.Millisecond // between two walks
)

// Release ends the lease of the programs that this process or an earlier one pinned under bpffs, and gives running connections
// back what they had before: adapted values, marks of ACKs and rate limits are undone, unless somebody else has changed them
// since. It needs what the pinned maps say of connections, so it comes before Remove. walk must call its argument in all network
// namespaces. It is not an error if there is nothing.
func Release(bpffs string, walk func(func() error) error) (err error) {
	dir := filepath.Join(PinDir(bpffs), pinVersion)
	if pins, err := os.ReadDir(dir); len(pins) == 0 && (err == nil || errors.Is(err, os.ErrNotExist)) {
		return nil // of another version, or it never attached its programs
	}
	objs, err := loadReleaser(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, objs.Close()) }()
	if err := endLease(objs.RuntimeConfig); err != nil {
		return err
	}
	it, err := link.AttachIter(link.IterOptions{Program: objs.TcpilotRelease})
	if err != nil {
		return fmt.Errorf("attach TCP iterator: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for end := time.Now().Add(releaseTime); ; time.Sleep(releasePause) {
		var left uint32
		err := errors.Join(objs.ClampsLeft.Set(left), walk(func() error { return walkSockets(it) }), objs.ClampsLeft.Get(&left))
		if err != nil || left == 0 || time.Now().After(end) {
			return err
		}
	}
}

// loadReleaser loads the program with the maps that are pinned in dir.
func loadReleaser(dir string) (*releaseObjects, error) {
	spec, err := loadRelease()
	if err != nil {
		return nil, fmt.Errorf("read embedded object release: %w", err)
	}
	if err := spec.Variables[releaseVarJiffyUs].Set(jiffyMicros()); err != nil {
		return nil, fmt.Errorf("set jiffy: %w", err)
	}
	pinned := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range pinned {
			_ = m.Close()
		}
	}()
	for name := range spec.Maps {
		if !shared(name) {
			continue
		}
		if pinned[name], err = ebpf.LoadPinnedMap(filepath.Join(dir, name), nil); err != nil {
			return nil, fmt.Errorf("open pinned map %s: %w", name, err)
		}
	}
	var objs releaseObjects
	if err := spec.LoadAndAssign(&objs, withMaps(spec, pinned)); err != nil {
		return nil, explainLoad("release", err)
	}
	return &objs, nil
}

// endLease makes the programs do nothing for new connections.
func endLease(config *ebpf.Map) error {
	var c abiRuntimeConfig
	if err := config.Lookup(uint32(0), &c); err != nil {
		return fmt.Errorf("read runtime configuration: %w", err)
	}
	c.LeaseNs = 0
	if err := config.Put(uint32(0), &c); err != nil {
		return fmt.Errorf("end lease: %w", err)
	}
	return nil
}
