package cc

import (
	"regexp"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/progstats"
)

// State is the state of a control on this host.
type State string

// The states of a control.
const (
	Available State = "available" // this kernel accepts it; it is not loaded
	Loaded    State = "loaded"    // registered: connections may be given it
	Elsewhere State = "elsewhere" // registered by another process, in an unknown version
	Absent    State = "absent"    // cannot be loaded; Why has the reason
)

// Control is a congestion control in BPF: what is known of it, its code, and its state in
// the kernel, which only what Catalogue returns has.
//
// Connections is the kernel's count of references to the version in force. Beside
// sockets, it counts one for each network namespace whose default the control is. It also
// counts one forever each time that the kernel refused the control as default of a
// namespace other than the initial one, because tcp_set_default_congestion_control of Linux
// 6.18 does not release that reference. Sockets that keep a version from before an upgrade are not
// counted.
type Control struct {
	congestion.Control // for a user's: only its name, NeedsECN and ByName

	Source  string // document that specifies it, or the file of a user's
	User    bool   // a user's control
	Version string // the first 12 hexadecimal digits of the SHA-256 of the code; empty if Elsewhere

	elf   []byte         // the code; nil in a registration
	knobs map[string]any // variables of the program to set

	State       State
	Why         string            // of Absent and Elsewhere
	Outdated    bool              // registered, and Load would replace it
	Connections int               // sockets that use it now, listening ones included
	Programs    []progstats.Stats // programs in the kernel, if it is loaded; not set by Loaded
}

// TestName is the name under which a user's control is registered while it is tested (see
// LoadUser). The kernel lists it then, and nothing else should use it.
const TestName = congestion.Prefix + "trial"

// maxName is TCP_CA_NAME_MAX (include/net/tcp.h) without its closing NUL.
const maxName = 15

// userName: the kernel also accepts dots in names of objects, but a BPF file system does
// not.
var userName = regexp.MustCompile(`^[A-Za-z0-9_]{1,15}$`)
