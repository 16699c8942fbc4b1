package cc

import "regexp"

// State says how far a control has come.
type State string

// The states of a control.
const (
	Available State = "available" // this kernel takes it; it is not loaded
	Loaded    State = "loaded"    // registered: connections may be given it
	Elsewhere State = "elsewhere" // registered by another process, in a version that is not known
	Absent    State = "absent"    // not here, because of Why
)

// Control is one row of the catalogue.
//
// Connections is the kernel's count of references to the version in force: to the
// number of sockets come one for each network namespace whose default it is, and for
// ever one each time that a namespace other than the first was refused it as its
// default (tcp_set_default_congestion_control of Linux 6.18 forgets that one).
// Sockets that go on with a version from before an upgrade are not counted.
type Control struct {
	Name        string // by which people, rules and the kernel know it
	State       State
	Why         string    // of Absent and Elsewhere
	Source      string    // document that ours were written from; file of a user's own
	User        bool      // a user's own
	NeedsECN    bool      // harmful where marks are not to be had
	ByName      bool      // only for connections whose rule names it
	Version     string    // of the object: the first 12 hexadecimal digits of its SHA-256; empty if Elsewhere
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

// Prefix begins the names of all controls of ours, so that they cannot be mistaken
// for the kernel's.
const Prefix = "tcpilot_"

// Trial is what a user's control is called while it is tried: the kernel lists it
// then, and nobody else should use it.
const Trial = Prefix + "trial"

// maxName is TCP_CA_NAME_MAX (include/net/tcp.h) without its closing NUL.
const maxName = 15

// userName: the kernel's names of objects also take dots, which a BPF file system
// does not.
var userName = regexp.MustCompile(`^[A-Za-z0-9_]{1,15}$`)
