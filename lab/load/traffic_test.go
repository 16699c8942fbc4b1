package load

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"
)

// pair is two agents, one of which listens.
func pair(t *testing.T) (client, server *Agent, to string) {
	t.Helper()
	client, server = newAgent(t), newAgent(t)
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	at, err := server.Listen(t.Context(), ListenSpec{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	return client, server, at.String()
}

func collect(t *testing.T, a *Agent) map[uint64]Account {
	t.Helper()
	accounts, err := a.Collect(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return accounts
}

func TestAccountsAreCollected(t *testing.T) {
	client, server, to := pair(t)
	s := FlowsSpec{To: to, CC: "reno", Account: 100, Concurrency: 3, Duration: 10 * time.Second,
		Flows: []Flow{{Size: 1}, {Size: 1_000_000}, {Size: 70_000}, {Size: 5}}}
	r, err := client.Flows(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	accounts := collect(t, server)
	if len(r.Connections) != 4 || len(accounts) != 4 {
		t.Fatalf("%d connections, %d accounts, want 4", len(r.Connections), len(accounts))
	}
	for i, c := range r.Connections {
		size := uint64(s.Flows[i].Size)
		if !c.Delivered || c.Error != "" || c.Bytes != size || c.Connect <= 0 || c.Elapsed < c.Connect {
			t.Errorf("flow of %d bytes: %+v", size, c)
		}
		a, ok := accounts[c.Account]
		// The acknowledgement of SYN and FIN may count as a byte each.
		if !ok || a.CCStart != "reno" || a.CCEnd != "reno" || a.Segments == 0 || a.BytesAcked < size || a.BytesAcked > size+2 {
			t.Errorf("account of %d bytes: %+v", size, a)
		}
	}
	if _, err := client.Bulk(t.Context(), BulkSpec{To: to, Duration: time.Millisecond}); err == nil {
		t.Error("the server still serves after collect")
	}
}

func TestFlowsKeepGapAndRepeat(t *testing.T) {
	const d, gap = time.Second, 10 * time.Millisecond
	r, err := flows(t.Context(), FlowsSpec{To: newServer(t), Account: 1, Flows: []Flow{{Size: 1}, {Size: 2}},
		Concurrency: 1, Gap: gap, Duration: d, Repeat: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r.Connections); n < 3 || n > int(d/gap) {
		t.Errorf("%d flows in %s, %s apart", n, d, gap)
	}
	for i, c := range r.Connections {
		if c.Bytes != uint64(1+i%2) {
			t.Errorf("flow %d has %d bytes", i, c.Bytes)
		}
		if i > 0 && c.Begin.Sub(r.Connections[i-1].Begin) < gap {
			t.Errorf("flow %d began too early", i)
		}
	}
}

func TestFlowsOpenLoopDoesNotWait(t *testing.T) {
	// The server never answers: each flow hangs after the connect, and the next one begins
	// anyway.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := FlowsSpec{To: l.Addr().String(), Account: 1, Duration: 5 * time.Second}
	for i := range 10 {
		s.Flows = append(s.Flows, Flow{At: time.Duration(i) * time.Millisecond, Size: 1})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	r, err := flows(ctx, s)
	if len(r.Connections) != 10 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%d flows began, want 10; %v", len(r.Connections), err)
	}
	for i, c := range r.Connections {
		if c.Connect <= 0 || c.Connect > 2500*time.Millisecond || c.Error == "" || c.Delivered {
			t.Errorf("flow %d did not hang from its time on: %+v", i, c)
		}
		if at := c.Begin.Sub(r.Connections[0].Begin); at != s.Flows[i].At {
			t.Errorf("flow %d counts from %s, want %s", i, at, s.Flows[i].At)
		}
	}
}

// An open loop runs a limited number of flows at a time. A flow that waits for a place
// counts from its own time on, and is begun even if the duration is over.
func TestFlowsOpenLoopCountsWaiting(t *testing.T) {
	const stall = 200 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	serve(&stalling{Listener: l, stall: stall})
	f := newFlowClient(FlowsSpec{To: l.Addr().String(), Account: 1, Duration: 100 * time.Millisecond,
		Flows: []Flow{{Size: 1}, {At: 10 * time.Millisecond, Size: 1}}}, 1)
	f.dispatch(t.Context())
	f.going.Wait()
	if len(f.begun) != 2 {
		t.Fatalf("%d flows began, want 2", len(f.begun))
	}
	if c := f.begun[1]; !c.Delivered || c.Elapsed < stall-10*time.Millisecond {
		t.Errorf("the second waited for the first, but: %+v", c)
	}
}

func TestRPCAccountsAreTheLargerSides(t *testing.T) {
	client, server, to := pair(t)
	up, err := client.RPC(t.Context(), RPCSpec{To: to, CC: "reno", Account: 1, Request: 200_000, Reply: 10, Count: 5, Duration: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	down, err := client.RPC(t.Context(), RPCSpec{To: to, CC: "reno", Account: 2, Request: 100, Reply: 200_000, Count: 5, Duration: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	accounts := collect(t, server)
	if _, ok := accounts[1]; ok || up.Own == nil || down.Own != nil {
		t.Fatalf("the smaller side keeps an account: %v, %v, %v", accounts, up.Own, down.Own)
	}
	for _, a := range []Account{*up.Own, accounts[2]} {
		if a.CCStart != "reno" || a.BytesAcked < 1_000_000 || a.BytesAcked > 1_000_010 {
			t.Errorf("account %+v", a)
		}
	}
	for _, r := range []RPCResult{up, down} {
		if !r.Delivered || r.Exchanges != 5 || len(r.Kept) != 5 || r.Bytes != 1_000_000 {
			t.Errorf("result %+v", r)
		}
	}
}

func TestMuxRepliesAreComplete(t *testing.T) {
	client, server, to := pair(t)
	sizes := []uint32{1, frame, frame + 1, 10 * frame, 100}
	r, err := client.Mux(t.Context(), MuxSpec{To: to, Account: 9, Request: 8, Sizes: sizes, Concurrency: 10, Count: 3, Duration: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Delivered || r.Exchanges != 30 || len(collect(t, server)) != 1 {
		t.Fatalf("result %+v", r)
	}
	got := map[uint64]int{}
	for _, x := range r.Kept {
		got[x.Bytes]++
	}
	for _, size := range sizes {
		if got[uint64(size)] != 6 {
			t.Errorf("%d replies of %d bytes, want 6", got[uint64(size)], size)
		}
	}
	// In a burst the smallest replies are complete first, whatever was requested first.
	if first := r.Kept[0].Bytes; first > 100 {
		t.Errorf("the first reply has %d bytes", first)
	}
}

func TestCollectForcesConnectionsToEnd(t *testing.T) {
	client, server, to := pair(t)
	done := make(chan RPCResult, 1)
	go func() {
		r, _ := client.RPC(t.Context(), RPCSpec{To: to, Account: 1, Request: 100, Reply: 100, Think: 10 * time.Second, Duration: time.Minute})
		done <- r
	}()
	time.Sleep(time.Second) // the first exchange is over, the second far off
	begin := time.Now()
	accounts, err := server.Collect(t.Context(), 50*time.Millisecond)
	if err != nil || accounts[1].Segments != 1 || time.Since(begin) > 8*time.Second {
		t.Errorf("after %s: %v, %v", time.Since(begin), accounts, err)
	}
}

func TestCancelEndsRequestsOfAllKinds(t *testing.T) {
	client := newAgent(t)
	defer client.Close()
	const long = time.Minute
	for name, request := range map[string]func(ctx context.Context, to string) error{
		"bulk": func(ctx context.Context, to string) error {
			_, err := client.Bulk(ctx, BulkSpec{To: to, Duration: long})
			return err
		},
		"rpc": func(ctx context.Context, to string) error {
			_, err := client.RPC(ctx, RPCSpec{To: to, Account: 1, Request: 100, Reply: 1, Duration: long})
			return err
		},
		"flows": func(ctx context.Context, to string) error {
			_, err := client.Flows(ctx, FlowsSpec{To: to, Account: 1, Flows: []Flow{{Size: 1}}, Concurrency: 1, Duration: long, Repeat: true})
			return err
		},
		"mux": func(ctx context.Context, to string) error {
			_, err := client.Mux(ctx, MuxSpec{To: to, Account: 1, Request: 8, Sizes: []uint32{1}, Concurrency: 1, Duration: long})
			return err
		},
		"churn": func(ctx context.Context, to string) error {
			_, err := client.Churn(ctx, ChurnSpec{To: []string{to}, Duration: long})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The server reads and answers nothing, so no request ends by itself.
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- request(ctx, l.Addr().String()) }()
			l.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			time.Sleep(100 * time.Millisecond) // until the request is served
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("request ended with %v", err)
			}
			c.SetReadDeadline(time.Now().Add(2 * time.Second))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("its connection is still there 2 s after")
			}
		})
	}
}

func TestPointsAreTaken(t *testing.T) {
	const every = 10 * time.Millisecond
	begin := time.Now()
	r, err := bulk(t.Context(), BulkSpec{To: newServer(t), Duration: time.Second, Sample: every, Drain: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	if n := len(r.Points); n < 5 || n > int(took/every)+1 {
		t.Errorf("%d points in %s, one each %s", n, took, every)
	}
	for i, p := range r.Points {
		if p.Cwnd == 0 || p.SRTT == 0 || p.CC == "" || i > 0 && (p.BytesAcked < r.Points[i-1].BytesAcked || p.At <= r.Points[i-1].At) {
			t.Errorf("point %d: %+v", i, p)
		}
	}
}

func TestSpecsOfTrafficHaveBounds(t *testing.T) {
	flow := []Flow{{Size: 1}}
	for name, s := range map[string]FlowsSpec{
		"no duration":   {Account: 1, Flows: flow, Concurrency: 1},
		"no account":    {Duration: time.Second, Flows: flow, Concurrency: 1},
		"no flows":      {Account: 1, Duration: time.Second},
		"empty flow":    {Account: 1, Duration: time.Second, Flows: []Flow{{}}},
		"huge flow":     {Account: 1, Duration: time.Second, Flows: []Flow{{Size: MaxMessage + 1}}},
		"endless":       {Account: 1, Duration: time.Second, Flows: flow, Repeat: true},
		"too many":      {Account: 1, Duration: time.Second, Flows: flow, Concurrency: maxWorkers + 1},
		"dense points":  {Account: 1, Duration: time.Second, Flows: flow, Sample: time.Microsecond},
		"negative time": {Account: 1, Duration: time.Second, Flows: flow, Gap: -1},
	} {
		if _, err := flows(t.Context(), s); err == nil {
			t.Errorf("flows: %s was accepted", name)
		}
	}
	for name, s := range map[string]RPCSpec{
		"no duration":   {Request: 100, Reply: 1},
		"long thinking": {Request: 100, Reply: 1, Duration: time.Second, Think: MaxThink + 1},
		"short request": {Request: 10, Reply: 1, Duration: time.Second},
	} {
		if _, err := rpc(t.Context(), s); err == nil {
			t.Errorf("RPC: %s was accepted", name)
		}
	}
	for name, s := range map[string]MuxSpec{
		"no sizes":       {Request: 8, Concurrency: 1, Duration: time.Second},
		"empty reply":    {Request: 8, Concurrency: 1, Duration: time.Second, Sizes: []uint32{0}},
		"large requests": {Request: chunk + 1, Concurrency: 1, Duration: time.Second, Sizes: []uint32{1}},
		"wide":           {Request: 8, Concurrency: MaxConcurrency + 1, Duration: time.Second, Sizes: []uint32{1}},
	} {
		if _, err := multiplex(t.Context(), s); err == nil {
			t.Errorf("mux: %s was accepted", name)
		}
	}
}

func TestThinnedKeepsAnEvenShare(t *testing.T) {
	k := thinned[int]{limit: 10}
	for i := range 100 {
		k.add(uint64(i), i)
	}
	if got, want := k.all(), []int{0, 16, 32, 48, 64, 80, 96}; !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
	k = thinned[int]{limit: 3}
	for _, n := range []int{5, 4, 0, 1, 2, 7, 3, 6} { // the order in which connections end
		k.add(uint64(n), n)
	}
	if got := k.all(); len(got) > 3 || !slices.Contains(got, 0) || !slices.Contains(got, 4) {
		t.Errorf("kept %v, want 0 and 4 among at most 3", got)
	}
	none := thinned[int]{}
	if none.add(0, 1); none.takes(0) || len(none.all()) != 0 {
		t.Error("nothing was to be kept")
	}
}
