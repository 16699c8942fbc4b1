package cc

import (
	"regexp"

	"github.com/tcpilot/tcpilot/internal/congestion"
)

// State says how far a control has come.
type State string

// The states of a control.
const (
	Available State = "available" // this kernel takes it; it is not loaded
	Loaded    State = "loaded"    // registered: connections may be given it
	Elsewhere State = "elsewhere" // registered by another process, in a version that is not known
	Absent    State = "absent"    // not here, because of Why
)

// Control is one row of the catalogue: a compiled control, and what has become of it.
//
// Connections is the kernel's count of references to the version in force: to the
// number of sockets come one for each network namespace whose default it is, and for
// ever one each time that a namespace other than the first was refused it as its
// default (tcp_set_default_congestion_control of Linux 6.18 forgets that one).
// Sockets that go on with a version from before an upgrade are not counted.
type Control struct {
	object // Version is empty if Elsewhere

	State       State
	Why         string    // of Absent and Elsewhere
	Outdated    bool      // registered, but Load would replace it
	Connections int       // sockets that use it now, listening ones included
	Programs    []Program // what runs in the kernel, if it is loaded; Loaded leaves them out
}

// Program is one function of a registered control.
type Program struct {
	Name    string
	ID      uint32
	Runs    uint64 // zero unless the kernel counts (sysctl kernel.bpf_stats_enabled)
	Nanosec uint64 // spent in all runs
}

// Trial is what a user's control is called while it is tried: the kernel lists it
// then, and nobody else should use it.
const Trial = congestion.Prefix + "trial"

// maxName is TCP_CA_NAME_MAX (include/net/tcp.h) without its closing NUL.
const maxName = 15

// userName: the kernel's names of objects also take dots, which a BPF file system
// does not.
var userName = regexp.MustCompile(`^[A-Za-z0-9_]{1,15}$`)
