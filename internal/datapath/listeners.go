package datapath

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// listeners notes whether walks have to change the flag of listening sockets by which the kernel asks for
// the options of a SYN-ACK: they have it if some rule has the peer option (bpf/sockops/peer_listen.bpf.h).
type listeners struct {
	set     bool        // SetSettings was called
	pending atomic.Bool // the next walk has flags to give, or to take back
}

// changed is called by SetSettings with the request ops that policies answered before, and answer now.
func (l *listeners) changed(before, now uint32) {
	op := requestMask(1<<tcp.PeerOption, 0)
	// Listeners that began to listen after the lease of an earlier process had expired lack the flag.
	if (before^now)&op != 0 || !l.set && now&op != 0 {
		l.pending.Store(true)
	}
	l.set = true
}

// asksListeners reports whether some rule has the peer option, so that listeners have a flag.
func (d *Datapath) asksListeners() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config.Requests&requestMask(1<<tcp.PeerOption, 0) != 0
}

// WantsWalk reports whether a walk should come soon, because listeners have to be given a flag, or to lose it, or because
// there may be connections that are to be followed from now on.
func (d *Datapath) WantsWalk() bool {
	return d.listeners.pending.Load() || d.adoption.wanted.Load() != d.adoption.served.Load()
}

// oldListeners returns why listeners that are older than a rule with the peer option do not answer it; nil if
// they do, or if there was no such listener yet.
func (d *Datapath) oldListeners() error {
	if d.live == nil {
		return d.liveErr
	}
	var code int32
	if err := d.live.objs.ListenersErr.Get(&code); err != nil {
		return fmt.Errorf("read what the iterator reports: %w", err)
	}
	if code == 0 {
		return nil
	}
	return fmt.Errorf("set the flag of a listener: %w (Linux 6.12 has the option); programs that are started again from now on answer", syscall.Errno(-code))
}
