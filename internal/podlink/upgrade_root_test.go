package podlink

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// talk is a connection on which one byte goes to and fro until it is ended.
type talk struct {
	turns atomic.Uint64
	stop  atomic.Bool
	done  chan error
}

func startTalk(t *testing.T, from, to *testenv.NS, address netip.Addr) *talk {
	t.Helper()
	l := to.Listen(t, "tcp", netip.AddrPortFrom(address, 5005).String())
	go serve(l, func(c net.Conn) { _, _ = io.Copy(c, c) })
	c := from.Dial(t, "tcp", l.Addr().String())
	k := &talk{done: make(chan error, 1)}
	go func() {
		defer c.Close()
		for b := make([]byte, 1); !k.stop.Load(); k.turns.Add(1) {
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, err := c.Write(b)
			if err == nil {
				_, err = io.ReadFull(c, b)
			}
			if err != nil {
				k.done <- err
				return
			}
		}
		k.done <- nil
	}()
	t.Cleanup(func() { k.stop.Store(true) })
	return k
}

// goesOn waits for some turns more.
func (k *talk) goesOn(t *testing.T, when string) {
	t.Helper()
	for want := k.turns.Load() + 50; k.turns.Load() < want; time.Sleep(time.Millisecond) {
		select {
		case err := <-k.done:
			t.Fatalf("%s: the connection ended: %v", when, err)
		default:
		}
	}
}

// pinnedMaps are the ids of the maps that are pinned in a directory, by name.
func pinnedMaps(t *testing.T, dir string) map[string]ebpf.MapID {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]ebpf.MapID{}
	for _, e := range entries {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, e.Name()), nil)
		if err != nil {
			t.Fatalf("%s: %v", e.Name(), err)
		}
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		ids[e.Name()], _ = info.ID()
		m.Close()
	}
	return ids
}

// A build whose maps have another layout takes over from an earlier one, whether it has another version or, by mistake, the same:
// connections go on, routing and limits hold with new maps, and the old programs and maps are freed.
func TestRootUpgradeToOtherMaps(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *rig){
		"another version": func(t *testing.T, r *rig) {
			if err := os.Rename(r.links.mapPins(), filepath.Join(r.dir, "v0")); err != nil {
				t.Fatal(err)
			}
		},
		"the same version": func(t *testing.T, r *rig) {
			layout := r.links.objs.PodDevices
			file := filepath.Join(r.links.mapPins(), marker)
			m, err := ebpf.NewMap(&ebpf.MapSpec{Name: marker, Type: layout.Type(), KeySize: layout.KeySize(), ValueSize: layout.ValueSize() + 8,
				MaxEntries: layout.MaxEntries(), Flags: layout.Flags()})
			if err == nil {
				err = errors.Join(os.Remove(file), m.Pin(file), m.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const rate = 20e6 / 8 // bytes per second
			r := newRig(t)
			r.open()
			w := r.wanted()
			w.Pods[1].Limits = pod.Bandwidth{Egress: 20e6}
			r.set(w)
			k := startTalk(t, r.a.NS, r.c.NS, r.c.V4)
			k.goesOn(t, "before the upgrade")
			names, attached := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress)
			programs := []ebpf.ProgramID{r.links.programs.podOut.id, r.links.programs.podIn.id, r.links.programs.wireIn.id}
			maps := pinnedMaps(t, r.links.mapPins())
			change(t, r) // while the earlier process may run
			if err := r.links.Close(); err != nil {
				t.Fatal(err)
			}
			k.goesOn(t, "without a process")
			r.open()
			k.goesOn(t, "before pods are known")
			r.set(w)
			k.goesOn(t, "after the upgrade")
			k.stop.Store(true)
			if err := <-k.done; err != nil {
				t.Error(err)
			}

			if got, links := onDevice(t, r.a.HostIndex, ebpf.AttachTCXIngress); !slices.Equal(got, names) || !slices.Equal(links, attached) || !r.links.adopted {
				t.Errorf("%q %v, before %q %v", got, links, names, attached)
			}
			if got := r.grown(func() { exchange(t, r.a.NS, r.c.NS, r.c.V4, 1000) }); !slices.Equal(keys(got), []string{"pod-to-wire", "wire-to-pod"}) {
				t.Errorf("to the other node: %v", got)
			}
			if got := r.grown(func() { exchange(t, r.b.NS, r.a.NS, r.a.V6, 1000) }); !slices.Equal(keys(got), []string{"pod-to-pod"}) {
				t.Errorf("on the node: %v", got)
			}
			f := flood(t, r.b, r.a, r.a.V4, nil, 500*time.Millisecond)
			least, most := 0.85*f.least(rate), rate*(f.took+60*time.Millisecond).Seconds()+3000
			if m := r.links.Meters(r.b.HostIndex).Egress; f.arrived < least || f.arrived > most || m.Dropped == 0 && f.exceeds(rate) {
				t.Errorf("the limit: %+v, want %.0f to %.0f; %+v", f, least, most, m)
			}

			now := pinnedMaps(t, r.links.mapPins())
			for name, old := range maps {
				if id, ok := now[name]; !ok || id == old {
					t.Errorf("map %s is pinned: %v; it is the old one: %v", name, ok, id == old)
				}
			}
			if entries, err := os.ReadDir(r.dir); err != nil || len(entries) != 2 {
				t.Errorf("directories of pins: %v, %v", entries, err)
			}
			for _, id := range maps {
				awaitGone(t, "map", func() error { return opened(ebpf.NewMapFromID(id)) })
			}
			for _, id := range programs {
				awaitGone(t, "program", func() error { return opened(ebpf.NewProgramFromID(id)) })
			}
		})
	}
}

func opened[T io.Closer](object T, err error) error {
	if err != nil {
		return err
	}
	return object.Close()
}

// awaitGone waits until the kernel has freed an object, some time after its last user.
func awaitGone(t *testing.T, what string, open func() error) {
	t.Helper()
	for begun := time.Now(); !errors.Is(open(), fs.ErrNotExist); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("an old %s is still there: %v", what, open())
		}
	}
}
