package daemon

import (
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/path"
)

// sink is the datapath. When a policy begins to switch running connections, it asks for a walk,
// which switches them.
type sink struct {
	*datapath.Datapath
	switches  chan<- struct{}
	switching map[path.Key]uint8 // SwitchFrom of the rows that have one
}

func (s *sink) WritePolicies(entries []path.Entry) error {
	if err := s.Datapath.WritePolicies(entries); err != nil {
		return err
	}
	for i := range entries {
		k, from := entries[i].Key, entries[i].Policy.SwitchFrom
		switch {
		case from == s.switching[k]:
		case from == 0:
			delete(s.switching, k)
		default:
			s.switching[k] = from
			select {
			case s.switches <- struct{}{}:
			default: // a walk is asked for already
			}
		}
	}
	return nil
}

func (s *sink) DeletePolicies(keys []path.Key) error {
	for _, k := range keys {
		delete(s.switching, k)
	}
	return s.Datapath.DeletePolicies(keys)
}
