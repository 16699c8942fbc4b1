package e2e

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
)

func TestRootCallbacksOfOtherProgramsSurvive(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"other", "tcpilot"} {
		t.Run(first+" attached first", func(t *testing.T) {
			w := newWorld(t, "far")
			// Every callback that tcpilot can ask for, on every connection.
			s := settings{rules: "  - name: lab\n    match: {remote: [10.77.0.0/16]}\n    set: {cc: reno}\n" +
				"    watch: {events: [rto, retransmit, state], share: 100%}\n"}
			var rtts, options func() uint64
			attach := func() {
				rtts = testenv.CountCallbacks(t, w.cgroup.Path, unix.BPF_SOCK_OPS_RTT_CB, unix.BPF_SOCK_OPS_RTT_CB_FLAG)
				options = testenv.CountCallbacks(t, w.cgroup.Path, unix.BPF_SOCK_OPS_HDR_OPT_LEN_CB, unix.BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
			}
			if first == "other" {
				attach()
				startTcpilot(t, w, s)
			} else {
				startTcpilot(t, w, s)
				attach()
			}
			r := bulk(t, w.client, load.BulkSpec{To: at(w.remotes[0].Addr4), Duration: time.Second})
			if r.CCStart != "reno" {
				t.Errorf("connection starts with %s: tcpilot's program did not run", r.CCStart)
			}
			if n := rtts(); n < 3 { // one per round trip, at most 50 ms each
				t.Errorf("another program got %d RTT callbacks of a connection of a second", n)
			}
			if n := options(); n < 100 { // one per packet
				t.Errorf("another program got %d callbacks for header options of a connection of a second", n)
			}
		})
	}
}
