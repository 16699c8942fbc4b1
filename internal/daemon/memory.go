package daemon

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// freeMemory gives the kernel back what the process does not need now: the heap first, because the
// collector reads pages of the program's file as well.
func freeMemory() {
	debug.FreeOSMemory()
	releaseTextPages()
}

// releaseTextPages releases the pages of this program's file: the start (reading BTF, loading
// programs, checking the store) touches most of them, and running needs few. Pages that are
// needed again come from the page cache. Errors are ignored, because this only saves memory.
func releaseTextPages() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		// 00400000-00a8e000 r-xp 00000000 08:01 1234   /usr/bin/tcpilot
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[5] != exe || f[1] != "r-xp" && f[1] != "r--p" {
			continue // a writable mapping has changes that the file does not have
		}
		first, last, _ := strings.Cut(f[0], "-")
		from, errFrom := strconv.ParseUint(first, 16, 64)
		to, errTo := strconv.ParseUint(last, 16, 64)
		if errFrom == nil && errTo == nil && from < to {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED)
		}
	}
}
