package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/store"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// learned writes beliefs of 10,000 paths with three arms to a new store.
func learned(t *testing.T, file string, paths int) {
	t.Helper()
	e := engine.New(engine.Options{Learner: learn.DefaultThompson(), Sink: engine.Discard{}, Now: recordedAt})
	e.SetOffered(offersOf(map[tcp.CC]bool{arms[0]: true, arms[1]: true, arms[2]: true}), tcp.CC{})
	rules := []policy.Rule{{Name: "all", Learn: &policy.Learn{}}}
	if err := e.Start(rules, policy.Resolver{}, nil, recordedAt); err != nil {
		t.Fatal(err)
	}
	for s := range samples(100, 10) {
		s.Class, s.Flags, s.Remote = 1, 0, netip.MustParseAddrPort("10.0.0.1:5201")
		for i := range paths / 100 {
			for k, a := range arms {
				s.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(s.Cookie), byte(i), 1}), 5201)
				s.Arm, s.CC = a, a
				s.At = time.Now().UnixNano() + int64(k)
				e.Observe(s)
			}
		}
	}
	st, _, err := store.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for more := true; more; {
		var changed []engine.StoredPath
		changed, _, more = e.Unsaved(1000)
		if err := st.Save(records(changed), nil); err != nil {
			t.Fatal(err)
		}
		e.Saved(time.Now(), nil)
	}
}

// TestRootMemory has the daemon hold 10,000 learned paths.
func TestRootMemory(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector needs many times the limit")
	}
	const paths, most = 10_000, 50 << 10 // KB
	p := newPlace(t)
	text, _ := os.ReadFile(p.config)
	if err := os.WriteFile(p.config, []byte(strings.Replace(string(text), "limit: 256", "limit: 16384", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	learned(t, p.path("state", "beliefs.db"), paths)
	d := p.spawn(t, nil)
	l, err := d.Paths(ctx, api.PathQuery{Limit: 1})
	if err != nil || l.Total < paths*95/100 {
		t.Fatalf("%d paths, %v\n%s", l.Total, err, d.log)
	}
	// While a client reads, there is a copy for it; then it is freed.
	reading := rss(t, d.cmd.Process.Pid)
	await(t, fmt.Sprintf("RSS of at most %d KB, which is %d while paths are read", most, reading), func() bool {
		return rss(t, d.cmd.Process.Pid) <= most
	})
	t.Logf("RSS %d KB while paths are read, %d KB after", reading, rss(t, d.cmd.Process.Pid))
}

func rss(t *testing.T, pid int) (kb int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
