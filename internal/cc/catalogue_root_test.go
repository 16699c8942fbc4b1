package cc

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/progstats"
)

func TestRootLoadCountUnload(t *testing.T) {
	r := newRig(t)
	rows, err := r.List()
	must(t, err)
	if len(rows) != 1 || rows[0].name() != testName || rows[0].State != Available || rows[0].Source != "RFC 5681" || rows[0].User {
		t.Errorf("before: %+v", rows)
	}
	if registered(t, testName) {
		t.Error("listing registered a control")
	}
	must(t, r.Load(t.Context(), testName))
	must(t, r.Load(t.Context(), testName)) // as it is
	var open []net.Conn
	for n := range 4 {
		if got := r.row(t, testName).Connections; got != n {
			t.Errorf("%d connections, counted %d", n, got)
		}
		c, s := r.pair(t, testName)
		exchange(t, c, s, 1<<20)
		open = append(open, c, s)
	}
	row := r.row(t, testName)
	if row.State != Loaded || len(row.Programs) != 4 || !slices.ContainsFunc(row.Programs, isSsthresh) || row.Version != version(_PlainBytes) {
		t.Errorf("loaded: %+v", row)
	}
	checkViews(t, r.Catalogue, row)
	if n, err := r.Unload(testName); n != 4 || err != nil {
		t.Errorf("unload with 4 connections: %d, %v", n, err)
	}
	if registered(t, testName) || len(pins(t, r.dir)) != 0 || r.row(t, testName).State != Available {
		t.Errorf("unloaded: pins %v, %+v", pins(t, r.dir), r.row(t, testName))
	}
	exchange(t, open[0], open[1], 8<<20)
	if got := ccOf(t, open[0]); got != testName {
		t.Errorf("the connection now has %s", got)
	}
	if err := setCC(open[1], testName); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a new socket got it: %v", err)
	}
	must(t, r.Load(t.Context(), testName)) // at once, while sockets still use the one before
	if n := r.row(t, testName).Connections; n != 0 {
		t.Errorf("loaded again with %d connections", n)
	}
	_, err = r.Unload(testName)
	must(t, err)
}

// checkViews compares One and Loaded with the row of the one control that is loaded.
func checkViews(t *testing.T, c *Catalogue, row Control) {
	t.Helper()
	if one, err := c.One(row.name()); err != nil || one.Connections != row.Connections || len(one.Programs) != len(row.Programs) {
		t.Errorf("one: %+v, %v", one, err)
	}
	light, err := c.Loaded()
	if err != nil || len(light) != 1 || light[0].Connections != row.Connections || light[0].Version != row.Version || light[0].Programs != nil {
		t.Errorf("loaded: %+v, %v", light, err)
	}
	if _, err := c.One("vegas"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that does not exist: %v", err)
	}
}

func isSsthresh(p progstats.Stats) bool { return p.Name == "plain_ssthresh" && p.ID != 0 }

func TestRootLoadRefuses(t *testing.T) {
	r := newRig(t)
	if _, err := r.Unload(testName); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unload what is not loaded: %v", err)
	}
	if err := r.Load(t.Context(), "vegas"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load an unknown name: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Load(ctx, testName); !errors.Is(err, context.Canceled) {
		t.Errorf("load after the end: %v", err)
	}
	other := newRig(t)
	must(t, other.Load(t.Context(), testName))
	if err := r.Load(t.Context(), testName); !errors.Is(err, unix.EEXIST) {
		t.Errorf("load beside another: %v", err)
	}
	if row := r.row(t, testName); row.State != Elsewhere || row.Version != "" || row.Why == "" {
		t.Errorf("beside another: %+v", row)
	}
	if row, err := r.One(testName); err != nil || row.State != Elsewhere {
		t.Errorf("beside another: %+v, %v", row, err)
	}
	_, err := other.Unload(testName)
	must(t, err)
	if row := r.row(t, testName); row.State != Available || row.Version == "" {
		t.Errorf("without the other: %+v", row)
	}
	if left := pins(t, r.dir); len(left) != 0 {
		t.Errorf("pins %v are left", left)
	}
}

// TestRootSurvivesRestart: the next process adopts what the one before loaded, without
// any effect on connections.
func TestRootSurvivesRestart(t *testing.T) {
	r := newRig(t)
	must(t, r.Load(t.Context(), testName))
	c, s := r.pair(t, testName)
	before := r.row(t, testName)
	r.restart(t)
	must(t, r.Load(t.Context(), testName))
	after := r.row(t, testName)
	if after.Connections != 1 || after.State != Loaded || after.Programs[0].ID != before.Programs[0].ID {
		t.Errorf("adopted: %+v, was %+v", after, before)
	}
	exchange(t, c, s, 1<<20)
	r.known = nil // the next process does not have this control
	r.restart(t)
	if registered(t, testName) || len(pins(t, r.dir)) != 0 {
		t.Errorf("a control that tcpilot no longer has is left: pins %v", pins(t, r.dir))
	}
	exchange(t, c, s, 1<<20)
}

// TestRootUpgrade: connections of the version before keep it, new ones get the new
// version, under the same name.
func TestRootUpgrade(t *testing.T) {
	r := newRig(t)
	must(t, r.Load(t.Context(), testName))
	c, s := r.pair(t, testName)
	first := r.row(t, testName)
	r.known[0].Version = "another"
	r.restart(t)
	if row := r.row(t, testName); !row.Outdated || row.Connections != 1 {
		t.Errorf("not outdated: %+v", row)
	}
	must(t, r.Load(t.Context(), testName))
	d, e := r.pair(t, testName)
	exchange(t, c, s, 1<<20)
	exchange(t, d, e, 1<<20)
	second := r.row(t, testName)
	if second.Outdated || second.Version != "another" || second.Connections != 1 || second.Programs[0].ID == first.Programs[0].ID {
		t.Errorf("upgraded from %+v to %+v", first, second)
	}
	if old := progstats.Of(first.Programs[0].ID); old.Name == "" {
		t.Error("the version before is gone although a connection uses it")
	}
	must(t, errors.Join(c.Close(), s.Close()))
	eventually(t, func() error {
		if progstats.Of(first.Programs[0].ID).Name != "" {
			return errors.New("the version before is left although no connection uses it")
		}
		return nil
	})
	exchange(t, d, e, 1<<20)
}

// TestRootPinsRemovedUnderConnections: removing the pins has no effect on a connection:
// it keeps its control until it closes.
func TestRootPinsRemovedUnderConnections(t *testing.T) {
	r := newRig(t)
	must(t, r.Load(t.Context(), testName))
	c, s := r.pair(t, testName)
	must(t, r.Close())
	must(t, os.RemoveAll(r.dir))
	must(t, waitUnregistered(testName))
	exchange(t, c, s, 8<<20)
	if got := ccOf(t, c); got != testName {
		t.Errorf("the connection now has %s", got)
	}
	if err := setCC(s, testName); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a new connection got it: %v", err)
	}
	r.open(t)
	must(t, r.Load(t.Context(), testName))
}

// TestRootCrash: what a process leaves half done is removed by the next.
func TestRootCrash(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(r.dir, testName)
	now := filepath.Join(path, r.known[0].Version)
	for _, c := range []struct {
		at    string
		spoil func() error
	}{
		{"before the link's pin", func() error { return os.Remove(filepath.Join(path, linkPin)) }},
		{"before the map's pin", func() error {
			return errors.Join(os.Remove(filepath.Join(path, linkPin)), os.Remove(filepath.Join(now, opsPin)))
		}},
		{"before the version", func() error { return errors.Join(os.Remove(filepath.Join(path, linkPin)), os.RemoveAll(now)) }},
		{"with the map lost", func() error { return os.Remove(filepath.Join(now, opsPin)) }},
		{"with the link lost by detaching", func() error { return r.registered[testName].link.Detach() }},
	} {
		must(t, r.Load(t.Context(), testName))
		if err := c.spoil(); errors.Is(err, ebpf.ErrNotSupported) {
			continue // Linux has detached such links since 6.11
		} else if err != nil {
			t.Fatal(err)
		}
		r.restart(t)
		if left := pins(t, r.dir); len(left) != 0 || registered(t, testName) {
			t.Errorf("%s: pins %v are left", c.at, left)
		}
	}
}

// TestRootCrashDuringUpgrade: of two versions the link shows which is in force, and the
// other is removed.
func TestRootCrashDuringUpgrade(t *testing.T) {
	r := newRig(t)
	must(t, r.Load(t.Context(), testName))
	first := r.known[0].Version
	next := r.known[0]
	next.Version = "another"
	check := func(at, want string) {
		t.Helper()
		r.restart(t)
		if row := r.row(t, testName); row.Version != want || row.State != Loaded || !slices.Equal(pins(t, filepath.Join(r.dir, testName)), sorted(linkPin, want)) {
			t.Errorf("%s: %+v, pins %v", at, row, pins(t, filepath.Join(r.dir, testName)))
		}
	}
	must(t, os.Mkdir(filepath.Join(r.dir, testName, next.Version), 0o700))
	check("before the map's pin", first)
	e, err := next.pin(r.registered[testName].path)
	must(t, err)
	must(t, e.ops.Close())
	check("before the update", first)
	e, err = next.pin(r.registered[testName].path)
	must(t, err)
	must(t, errors.Join(update(r.registered[testName].link, e.ops), e.ops.Close()))
	check("after the update", next.Version)
	c, s := r.pair(t, testName)
	exchange(t, c, s, 1<<20)
}

func sorted(names ...string) []string {
	slices.Sort(names)
	return names
}

func TestRootHold(t *testing.T) {
	r := newRig(t)
	o := plain(testName)
	release, err := o.hold()
	must(t, err)
	c, s := r.pair(t, testName)
	again, err := o.hold()
	must(t, err)
	must(t, again())
	if !registered(t, testName) {
		t.Error("a holder that did not register it unregistered it")
	}
	must(t, release())
	if registered(t, testName) {
		t.Error("still registered")
	}
	exchange(t, c, s, 1<<20)
	must(t, r.Load(t.Context(), testName))
	release, err = o.hold()
	must(t, err)
	must(t, release())
	if !registered(t, testName) {
		t.Error("unregistered under a catalogue")
	}
	if _, err := Hold("vegas"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("held an unknown name: %v", err)
	}
}
