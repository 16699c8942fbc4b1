package topology

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExclusiveNamesTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	// Nothing of an earlier, longer pid in the file may remain.
	if err := os.WriteFile(path, []byte("123456789012\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := exclusive(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = exclusive(path)
	if want := fmt.Sprintf("process %d (topology.test) runs", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("second lock: %v, want %q in it", err, want)
	}
	first()
	again, err := exclusive(path)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again()
	if _, err := exclusive("/proc/none/lock"); err == nil {
		t.Error("locked a file that cannot exist")
	}
}

// The lock of a killed run is removed, that of a running one is not.
func TestSweepRemovesALockThatNobodyHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for _, c := range []struct {
		name          string
		exists, held  bool
		removed, left bool
	}{
		{"none", false, false, false, false},
		{"of a dead process", true, false, true, false},
		{"held", true, true, false, true},
	} {
		if c.exists {
			if err := os.WriteFile(path, []byte("1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c.held {
			release, err := exclusive(path)
			if err != nil {
				t.Fatal(err)
			}
			defer release()
		}
		removed, err := sweepLock(path)
		if err != nil || removed != c.removed {
			t.Errorf("%s: removed %v, %v", c.name, removed, err)
		}
		if _, err := os.Stat(path); (err == nil) != c.left {
			t.Errorf("%s: left %v", c.name, err == nil)
		}
	}
}
