package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mount is one line of mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	id     string // unique while it is mounted
	root   string // what of the file system is mounted: "/", or net:[4026532000]
	point  string // where
	fstype string
}

func readMounts(path string) ([]mount, error) {
	lines, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parseMounts(string(lines)), nil
}

func parseMounts(lines string) []mount {
	var mounts []mount
	for line := range strings.Lines(lines) {
		// The number of optional fields varies; a lone dash ends them.
		fixed, rest, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(fixed), strings.Fields(rest)
		if !ok || len(f) < 6 || len(g) < 1 {
			continue
		}
		mounts = append(mounts, mount{id: f[0], root: unescape(f[3]), point: unescape(f[4]), fstype: g[0]})
	}
	return mounts
}

// unescape undoes the kernel's mangle(): space, tab, newline, # and backslash
// appear as a backslash and three octal digits.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
