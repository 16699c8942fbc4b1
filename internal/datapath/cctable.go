package datapath

import (
	"fmt"
	"sync/atomic"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

const maxCC = int(abiAbiLimitsMAX_CC)

// ccTable maps congestion controls to the small numbers that the programs use.
// It only grows, because samples of connections that began long ago still name their arm
// by number. One goroutine adds; any goroutine may read.
type ccTable struct {
	names [maxCC]tcp.CC
	n     atomic.Uint32
}

func (t *ccTable) name(i uint32) tcp.CC {
	if i < t.n.Load() {
		return t.names[i]
	}
	return tcp.CC{}
}

func (t *ccTable) lookup(cc tcp.CC) (uint8, bool) {
	for i := range t.n.Load() {
		if t.names[i] == cc {
			return uint8(i), true
		}
	}
	return 0, false
}

// add returns cc's number, and allocates the next one if it has none.
func (t *ccTable) add(cc tcp.CC) (uint8, error) {
	if i, ok := t.lookup(cc); ok {
		return i, nil
	}
	if err := t.room(cc); err != nil {
		return 0, err
	}
	n := t.n.Load()
	t.names[n] = cc
	t.n.Store(n + 1)
	return uint8(n), nil
}

// room returns an error if cc has no number and none is left.
func (t *ccTable) room(cc tcp.CC) error {
	if _, ok := t.lookup(cc); !ok && int(t.n.Load()) == maxCC {
		return fmt.Errorf("congestion control %s: %d are known already: 'tcpilot detach' and another start of tcpilot forget old ones", cc, maxCC)
	}
	return nil
}
