package store

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// residentFile is the part of this process's memory that is mapped from files,
// in bytes.
func residentFile(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssFile:" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Skip("the kernel does not tell RssFile")
	return 0
}

func TestMappedPagesAreGivenBack(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	save(t, s, records(20_000, 1000)) // 20 MB and more
	before := residentFile(t)
	if got := len(load(t, s)); got != 20_000 {
		t.Fatalf("%d records", got)
	}
	if grown := residentFile(t) - before; grown > 5<<20 {
		t.Errorf("loading left %d bytes of the file in memory", grown)
	}
}

func TestMappingSize(t *testing.T) {
	s := openNew(t, filepath.Join(t.TempDir(), "beliefs.db"))
	start := s.db.Info().Data
	// bbolt maps at least 32 KiB, and powers of two up to 1 GiB.
	if size := mappingSize(start); size < 32<<10 || size&(size-1) != 0 {
		t.Errorf("size is %d", size)
	}
	if size := mappingSize(start + 1); size != 0 {
		t.Errorf("size of no mapping is %d", size)
	}
}
