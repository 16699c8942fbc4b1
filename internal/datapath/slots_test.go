package datapath

import "testing"

// A slot is freed only if it still belongs to the connection that had it when it was read. That
// connection may have ended meanwhile, and another one, even one of the same socket, may have the slot.
func TestFreeSlot(t *testing.T) {
	read := abiTrack{Cookie: 7, StartNs: 100, Class: 1, Flags: 3, LossRttUs: 9}
	for name, tc := range map[string]struct {
		now, want abiTrack
		freed     bool
	}{
		"the same":                 {read, abiTrack{}, true},
		"written since":            {abiTrack{Cookie: 7, StartNs: 100, Class: 1, Flags: 7}, abiTrack{}, true},
		"free":                     {abiTrack{StartNs: 100}, abiTrack{StartNs: 100}, false},
		"of another connection":    {abiTrack{Cookie: 8, StartNs: 200, Class: 2}, abiTrack{Cookie: 8, StartNs: 200, Class: 2}, false},
		"another one, not started": {abiTrack{Cookie: 8, StartNs: 100}, abiTrack{Cookie: 8, StartNs: 100}, false},
		"of the same socket again": {abiTrack{Cookie: 7, StartNs: 200}, abiTrack{Cookie: 7, StartNs: 200}, false},
	} {
		slot := tc.now
		if freed := freeSlot(&slot, &read); freed != tc.freed || slot != tc.want {
			t.Errorf("%s: freed %t, %+v", name, freed, slot)
		}
	}
}
