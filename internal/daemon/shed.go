package daemon

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shedText gives back the pages of this program's file that were mapped for the start:
// reading BTF and loading programs touch most of it, running touches little. It saves
// 3.3 MB (docs/design/0012-give-text-pages-back.md). What is needed again comes from the
// page cache. It is advice, and so it has no error.
func shedText() {
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
			continue // what can be written to holds more than the file does
		}
		first, last, _ := strings.Cut(f[0], "-")
		from, errFrom := strconv.ParseUint(first, 16, 64)
		to, errTo := strconv.ParseUint(last, 16, 64)
		if errFrom == nil && errTo == nil && from < to {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED)
		}
	}
}
