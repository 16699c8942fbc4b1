package tcp

import "testing"

func TestCCStateIsKnownOrZero(t *testing.T) {
	var s CCState
	if s.Known() {
		t.Error("a sample of another congestion control has a state")
	}
	s.Flags = CCFlagKnown | CCFlagECN
	if !s.Known() || !s.Has(CCFlagECN) || s.Has(CCFlagECN|CCFlagFullPipe) {
		t.Errorf("flags %b", s.Flags)
	}
}
