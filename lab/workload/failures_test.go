package workload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/topology"
)

func TestRootCancel(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	long := time.Minute
	for name, s := range map[string]Spec{
		"bulk":   {Kind: Bulk, Duration: long},
		"rpc":    {Kind: RPC, Duration: long},
		"flows":  {Kind: Flows, Duration: long, Concurrency: 5, Size: Size{Fixed: 1_000_000}},
		"churn":  {Kind: Churn, Duration: long, Streams: 4},
		"mux":    {Kind: Mux, Duration: long, Size: Size{Fixed: 1_000_000}},
		"iperf3": {Kind: Iperf3, Duration: long},
		"wrk":    {Kind: Wrk, Duration: long, Size: Size{Fixed: 1000}},
		"later":  {Kind: Bulk, Duration: time.Second, Start: long},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			begin := time.Now()
			if _, err := f.Run(ctx, []Spec{s}); err == nil {
				t.Error("a round that was cancelled has no error")
			}
			if took := time.Since(begin); took > long/2 {
				t.Errorf("ended after %s", took)
			}
			run(t, f, Spec{Kind: Flows, Size: Size{Fixed: 1}}) // nothing is in the way of the next
		})
	}
}

// processes are those of the machine that were started by this one.
func processes(t *testing.T) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		stat, _ := os.ReadFile(file)
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			n++
		}
	}
	return n
}

func TestRootNoProcessIsLeft(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	agents := processes(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	f.Run(ctx, []Spec{{Kind: Iperf3, Duration: time.Minute}, {Kind: Wrk, Duration: time.Minute, Size: Size{Fixed: 1}}})
	if n := processes(t); n != agents {
		t.Errorf("%d processes after a round that was cancelled, %d before", n, agents)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if n := processes(t); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

// opened is how many TCP connections were ever begun or accepted in the namespace of a process.
func opened(pid int) (n int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp", pid))
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"ActiveOpens", "PassiveOpens"} {
		more, err := testenv.NetCounter(string(text), name)
		if err != nil {
			return 0, err
		}
		n += more
	}
	return n, nil
}

// killDuring kills an agent when so many more connections were begun or accepted in its namespace.
func killDuring(t *testing.T, a *load.Agent, connections int) {
	t.Helper()
	before, err := opened(a.Pid())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if n, err := opened(a.Pid()); err != nil { // it has ended
				return
			} else if n >= before+connections {
				syscall.Kill(a.Pid(), syscall.SIGKILL)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
}

func TestRootVanishedServer(t *testing.T) {
	f := newFleet(t, topology.Incast(2))
	killDuring(t, f.agents["sender1"], 20)
	s := Spec{Kind: Flows, Duration: 2400 * time.Millisecond, Size: Size{Fixed: 10_000}, Concurrency: 2, Gap: 10 * time.Millisecond}
	r, err := f.Run(t.Context(), []Spec{s})
	if err != nil {
		t.Fatal(err)
	}
	byHost := map[string]int{}
	for _, c := range r.Connections {
		byHost[c.From]++
	}
	if r.Errors < 10 || r.FirstError == "" || byHost["sender1"] == 0 || byHost["sender2"] <= byHost["sender1"] {
		t.Errorf("%d errors, first %q, connections by server %v", r.Errors, r.FirstError, byHost)
	}
	if _, err := f.Run(t.Context(), []Spec{s}); err == nil || !strings.Contains(err.Error(), "sender1") {
		t.Errorf("the next round's error is %v, want one that names the host", err)
	}
}

func TestRootVanishedClient(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	killDuring(t, f.agents["sender1"], 1)
	r, err := f.Run(t.Context(), []Spec{{Kind: Bulk, Duration: 2 * time.Second}})
	if err != nil || r.Errors == 0 || !strings.Contains(r.FirstError, "agent ended") {
		t.Errorf("%d errors, first %q, %v", r.Errors, r.FirstError, err)
	}
}

// A receiver that cannot be reached leaves nothing but errors.
func TestRootUnreachable(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 1))
	if _, err := f.layout.Receivers[0].Run("ip", "link", "set", "receiver1", "down"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // connecting is given up after 5 s
	defer cancel()
	r, err := f.Run(ctx, []Spec{{Name: "churn", Kind: Churn, Count: 2, Duration: 100 * time.Millisecond}})
	if err != nil || r.Errors == 0 || len(r.Connections) > 0 {
		t.Errorf("%d errors, first %q, %d connections, %v", r.Errors, r.FirstError, len(r.Connections), err)
	}
}

func TestRootPartsThatCannotBe(t *testing.T) {
	f := newFleet(t, topology.Dumbbell(1, 2))
	for want, s := range map[string]Spec{
		"duration: ":                      {Kind: Bulk},
		"to: one host has all":            {Kind: Churn, Count: 1, Paths: 9},
		`from: "left" is neither`:         {Kind: Bulk, Duration: time.Second, From: "left"},
		`to: "moon" is neither`:           {Kind: Bulk, Duration: time.Second, To: "moon"},
		"sender1 has no traffic with its": {Kind: Bulk, Duration: time.Second, To: "sender1"},
	} {
		if _, err := f.Run(t.Context(), []Spec{s}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", s, err, want)
		}
	}
	t.Setenv("PATH", t.TempDir())
	_, err := f.Run(t.Context(), []Spec{{Kind: Wrk, Duration: time.Second, Size: Size{Fixed: 1}}})
	if err == nil || !strings.Contains(err.Error(), "install the package wrk") {
		t.Errorf("without wrk: %v", err)
	}
}
