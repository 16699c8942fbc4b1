package podrecord

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// What is noted of a removal is beside the records, and is not taken for one, nor removed with them.
func TestRemoval(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "pods"))
	if r, err := d.Removal(); r != nil || err != nil {
		t.Errorf("without a directory: %+v, %v", r, err)
	}
	if err := d.EndRemoval(); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	if w, err := d.Waits(); err != nil || !w.None() {
		t.Errorf("without a directory: %+v, %v", w, err)
	}
	want := &Removal{ConfDir: "/etc/cni/net.d", BinDir: "/opt/cni/bin", Inode: 7, Since: time.Date(2026, 11, 30, 18, 0, 0, 0, time.UTC)}
	if err := d.BeginRemoval(want); err != nil {
		t.Fatal(err)
	}
	a, b := put(t, d, "n", "a", "eth0"), put(t, d, "n", "b", "eth0")
	for _, k := range []pod.Key{a, b} {
		if err := d.Stopped(k, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Delete(a); err != nil {
		t.Fatal(err)
	}
	if removed, err := d.Keep("n", nil); removed != 1 || err != nil {
		t.Errorf("%d are removed, %v", removed, err)
	}
	if records, refused, err := d.List(); len(records) != 0 || len(refused) != 0 || err != nil {
		t.Errorf("%+v, %+v, %v", records, refused, err)
	}
	if got, err := d.Removal(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if w, err := d.Waits(); err != nil || w.Stopped != 2 || w.None() {
		t.Errorf("%+v, %v", w, err)
	}
	if err := d.EndRemoval(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(string(d)); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	for _, text := range []string{"", "{", "\x00\x00", `{"conf_dir": 7}`} {
		write(t, d, removalFile, text)
		if r, err := d.Removal(); err != nil || *r != (Removal{}) {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}

// Notes of DELs that are not awaited any more are removed, also if the clock was set back after they were written.
func TestWaitsForgets(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "pods"))
	k := pod.Key{Container: "a", Interface: "eth0"}
	for shift, awaited := range map[time.Duration]bool{0: true, -time.Hour: false, time.Hour: false, -time.Minute: true, time.Minute: true} {
		for _, again := range []bool{false, true} { // as the first, or as the second of two that follow each other
			if err := d.Stopped(k, ""); err != nil {
				t.Fatal(err)
			}
			if again {
				if err := d.Repeated(k); err != nil {
					t.Fatal(err)
				}
			}
			at := time.Now().Add(shift)
			if err := os.Chtimes(d.stoppedPath(k), at, at); err != nil {
				t.Fatal(err)
			}
			if again {
				if err := d.Repeated(k); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(d.stoppedPath(k)); (err == nil) != (shift != 0) {
					t.Errorf("the second one %v after the first: %v", -shift, err)
				}
				continue
			}
			w, err := d.Waits()
			_, gone := os.Stat(d.stoppedPath(k))
			if err != nil || (w.Stopped == 1) != awaited || (gone == nil) != awaited {
				t.Errorf("%v ago: %+v, %v, %v", -shift, w, err, gone)
			}
		}
	}
}

func TestWaits(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "pods"))
	here, gone := filepath.Join(t.TempDir(), "netns"), filepath.Join(t.TempDir(), "gone")
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []pod.Pod{
		{Container: "a", NetNS: here, Namespace: "shop", Name: "web-1"}, {Container: "b", NetNS: gone},
		{Container: "c", NetNS: gone, Made: true}, {Container: "d", NetNS: "/no/such/directory"},
	} {
		p.Interface, p.Network, p.Cookie = "eth0", "n", 7
		if err := d.Put(&p); err != nil {
			t.Fatal(err)
		}
	}
	if w, err := d.Waits(); err != nil || !slices.Equal(w.Pods, []string{"shop/web-1", "c", "d"}) || w.Gone != 1 || w.Stopped != 0 {
		t.Errorf("%+v, %v", w, err)
	}
}
