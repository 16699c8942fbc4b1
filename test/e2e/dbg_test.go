package e2e
import ("testing";"time";"github.com/tcpilot/tcpilot/internal/lab/load")
func TestDbg(t *testing.T) {
	w, r := lossy(t)
	p := startTcpilot(t, w, settings{})
	f := p.follow(t)
	for i := range 4 {
		cc := ""
		if i%2 == 1 { cc = "reno" }
		c := bulk(t, w.client, load.BulkSpec{To: at(r.Addr4), Duration: 100 * time.Millisecond, CC: cc})
		t.Logf("%+v", c)
		time.Sleep(1500*time.Millisecond)
		f.mu.Lock()
		for _, s := range f.samples { t.Logf("  %v %v %v %v %v", s.Kind, s.Local, s.Flags, s.CC, s.End) }
		f.mu.Unlock()
	}
}
