package store

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// shed gives the mapped pages of the file back: they would count as the
// daemon's memory until the next use, though the page cache has them anyway.
func shed(db *bolt.DB) {
	start := db.Info().Data
	// The kernel is asked how far the mapping goes: the file may be longer, and
	// what follows the mapping may be anybody's.
	if size := mappingSize(start); size > 0 {
		unix.Syscall(unix.SYS_MADVISE, start, size, unix.MADV_DONTNEED)
	}
}

// mappingSize is the size of this process's shared mapping that begins at start;
// 0 if there is none.
func mappingSize(start uintptr) uintptr {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0
	}
	defer maps.Close()
	prefix := fmt.Sprintf("%08x-", start) // 7f0c2b5d1000-7f0c2b5d9000 r--s 00000000 ...
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), prefix)
		if !ok {
			continue
		}
		end, rest, _ := strings.Cut(rest, " ")
		address, err := strconv.ParseUint(end, 16, 64)
		if err != nil || !strings.HasPrefix(rest, "r--s ") {
			return 0
		}
		return uintptr(address) - start
	}
	return 0
}
