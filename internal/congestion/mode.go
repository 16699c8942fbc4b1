package congestion

import (
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// unnamedMode is the prefix of the name of a mode that this version does not know.
const unnamedMode = "mode-"

// ModeName is the name of the mode that cc reports in s; empty if it has reported no state.
func ModeName(cc tcp.CC, s *tcp.CCState) string {
	if !s.Known() {
		return ""
	}
	if names := modes(cc); int(s.Mode) < len(names) {
		return names[s.Mode]
	}
	return unnamedMode + strconv.Itoa(int(s.Mode))
}

// ParseMode is the number of the mode of cc with this name; it reverses ModeName.
func ParseMode(cc tcp.CC, name string) (mode uint8, ok bool) {
	for i, n := range modes(cc) {
		if n == name {
			return uint8(i), true
		}
	}
	digits, ok := strings.CutPrefix(name, unnamedMode)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 8)
	return uint8(n), err == nil
}

func modes(cc tcp.CC) []string {
	if i := index(cc); i >= 0 {
		return catalogue[i].Modes
	}
	return nil
}
