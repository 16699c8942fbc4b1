package testenv

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// NetCounter is a counter in the text of /proc/net/snmp or /proc/net/netstat, in which each group of counters has a
// line of names and one of values.
func NetCounter(text, name string) (int, error) {
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		values := strings.Fields(lines[i+1])
		if at := slices.Index(strings.Fields(lines[i]), name); at >= 0 && at < len(values) {
			return strconv.Atoi(values[at])
		}
	}
	return 0, fmt.Errorf("no counter %s in %q", name, text)
}
