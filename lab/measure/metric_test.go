package measure

import (
	"math"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// round is two bulk connections and one with requests.
func round() *Result {
	return &Result{
		Elapsed: 10 * time.Second,
		Connections: []Connection{
			{Group: "bulk", ID: 0, From: "s1", To: "r1", Elapsed: 10 * time.Second, Bytes: 10e6, Segments: 8000, Retrans: 80, RTOs: 1,
				MinRTT: 10_000, MeanRTT: 30_000, Delivered: true},
			{Group: "bulk", ID: 1, From: "s1", To: "r1", Elapsed: 5 * time.Second, Bytes: 15e6, Segments: 12000, Retrans: 20, RTOs: 2,
				MinRTT: 20_000, MeanRTT: 40_000, Delivered: true},
			{Group: "web/small", ID: 2, From: "s2", To: "r1", Elapsed: 2 * time.Second, Bytes: 1e6, MinRTT: 5000},
		},
		Requests: []Request{
			{Group: "web/small", Conn: 2, Elapsed: 100 * ms, Bytes: 1000}, {Group: "web/small", Conn: 2, Elapsed: 300 * ms, Bytes: 1000},
			{Group: "web/small", Conn: 2, Elapsed: 200 * ms, Bytes: 1000}, {Group: "web/small", Conn: 2, Elapsed: 1000 * ms, Bytes: 1000},
		},
		Errors: 2,
		CPU:    map[string]CPU{"s1": {User: 1 * time.Second, System: 2 * time.Second}, "r1": {System: 2200 * ms}},
	}
}

func same(t *testing.T, what string, have, want map[string]float64) {
	t.Helper()
	for name, v := range have {
		if w, ok := want[name]; !ok {
			t.Errorf("%s: %s is %v, want it absent", what, name, v)
		} else if math.Abs(v-w) > 1e-9*math.Abs(w) {
			t.Errorf("%s: %s is %v, want %v", what, name, v, w)
		}
	}
	for name := range want {
		if _, ok := have[name]; !ok {
			t.Errorf("%s: %s is absent", what, name)
		}
	}
}

func TestOf(t *testing.T) {
	same(t, "round", Of(round()), map[string]float64{
		"goodput":                26e6 * 8 / 10,
		"connection_goodput":     8e6,            // of 8, 24 and 4 Mbit/s
		"fct_mean":               0.4,            // of 0.1, 0.2, 0.3 and 1 s
		"fct_p50":                0.25,           //
		"fct_p75":                0.3 + 0.25*0.7, //
		"fct_p90":                0.3 + 0.7*0.7,  //
		"fct_p95":                0.3 + 0.85*0.7, //
		"fct_p99":                0.3 + 0.97*0.7, // 2.97 of the way from the first to the fourth
		"requests_per_second":    0.4,            //
		"connections_per_second": 0.2,            // two delivered
		"retrans":                100. / 20000,   //
		"rtt":                    0.035,          // the third has no mean
		"rtt_inflation":          3.5,            // 30/10 and 40/10: the same two hosts
		"jain":                   36 * 36 / (3 * (64. + 576 + 16)),
		"cpu_per_byte":           5.2 / 26e6,
		"cpu_per_request":        5.2 / 6, // 4 requests and 2 connections
		"errors":                 2. / 8,  // 2 failed, 2 connections and 4 requests succeeded
		"rtos":                   3,
	})
}

// What a byte and a request cost the machine, and which requests are late, are known only if the
// round says so.
func TestMachineAndDeadlines(t *testing.T) {
	const ms = time.Millisecond
	r := Result{
		Elapsed: 2 * time.Second, Machine: 400 * ms,
		Connections: []Connection{{Group: "a", ID: 0, Elapsed: time.Second, Bytes: 100, Delivered: true}, {Group: "a", ID: 1, Elapsed: time.Second, Bytes: 100, Delivered: true}},
		Requests: []Request{
			{Group: "a", Elapsed: 100 * ms, Deadline: 400 * ms}, {Group: "a", Elapsed: 500 * ms, Deadline: 400 * ms},
			{Group: "a", Conn: 1, Elapsed: 700 * ms, Deadline: 400 * ms}, {Group: "a", Conn: 1, Elapsed: 9000 * ms},
		},
	}
	got := Of(&r)
	for name, want := range map[string]float64{
		"machine_per_byte": 0.4 / 200, "machine_per_request": 0.1,
		"late":    2. / 3,       // one has no deadline
		"stalled": 0.4 / 2 / 2., // of two connections in 2 s
	} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestGroups(t *testing.T) {
	groups := Groups(round())
	if len(groups) != 2 {
		t.Fatalf("%d groups, want 2", len(groups))
	}
	same(t, "bulk", groups["bulk"], map[string]float64{
		"goodput": 20e6, "connection_goodput": 16e6, "connections_per_second": 0.2, "retrans": 0.005, "rtt": 0.035,
		"rtt_inflation": 3.5, "jain": 32 * 32 / (2 * (64. + 576)), "rtos": 3,
	})
	same(t, "web/small", groups["web/small"], map[string]float64{
		"goodput": 4e6, "connection_goodput": 4e6, "fct_mean": 0.4, "fct_p50": 0.25, "fct_p75": 0.3 + 0.25*0.7, "fct_p90": 0.3 + 0.7*0.7, "fct_p95": 0.3 + 0.85*0.7, "fct_p99": 0.3 + 0.97*0.7,
		"requests_per_second": 2, "connections_per_second": 0, "rtos": 0,
	})
}

// A sample of a group's connections does not show how long the group's traffic lasted;
// its totals do.
func TestSampleOfManyConnections(t *testing.T) {
	r := &Result{
		Elapsed: 20 * time.Second,
		Connections: []Connection{
			{Group: "churn", Start: 1 * time.Second, Elapsed: ms, Bytes: 100},
			{Group: "churn", ID: 1, Start: 3 * time.Second, Elapsed: ms, Bytes: 100},
		},
		Requests: []Request{{Group: "churn", Elapsed: ms, Bytes: 100}},
	}
	lane := func(begin, end time.Duration) Total {
		return Total{Connections: 5000, Requests: 5000, Bytes: 500_000, Begin: begin, End: end}
	}
	for name, c := range map[string]struct {
		total Total
		want  float64 // seconds
	}{
		"the totals'":    {lane(1*time.Second, 6*time.Second).Plus(lane(500*ms, 5*time.Second)), 5.5},
		"another order":  {Total{}.Plus(lane(500*ms, 5*time.Second)).Plus(lane(1*time.Second, 6*time.Second)).Plus(Total{}), 5.5},
		"the records'":   {lane(0, 0).Plus(lane(0, 0)), 2.001},
		"less than them": {lane(2*time.Second, 3*time.Second).Plus(lane(2*time.Second, 2500*ms)), 2.001},
	} {
		r.Totals = map[string]Total{"churn": c.total}
		group := Groups(r)["churn"]
		for metric, amount := range map[string]float64{"connections_per_second": 10_000, "requests_per_second": 10_000, "goodput": 8e6} {
			if have := group[metric]; math.Abs(have-amount/c.want) > 1e-6*have {
				t.Errorf("%s: %s is %v, want %v", name, metric, have, amount/c.want)
			}
		}
	}
}

func TestUnknownMetricsAreAbsent(t *testing.T) {
	same(t, "nothing", Of(&Result{}), map[string]float64{})
	r := &Result{Connections: []Connection{{Bytes: 1, Delivered: true}}, NoRTOs: true}
	same(t, "no time", Of(r), map[string]float64{"errors": 0})
	r.Elapsed, r.Connections[0].Elapsed = time.Second, time.Second
	same(t, "one connection", Of(r), map[string]float64{
		"goodput": 8, "connection_goodput": 8, "connections_per_second": 1, "errors": 0,
	})
	dead := &Result{Elapsed: time.Second, Connections: []Connection{{Elapsed: time.Second}, {Elapsed: time.Second}}, Errors: 2}
	same(t, "nothing arrived", Of(dead), map[string]float64{
		"goodput": 0, "connection_goodput": 0, "connections_per_second": 0, "errors": 1, "rtos": 0,
	})
}

func TestLookup(t *testing.T) {
	r := round()
	of, groups := Of(r), Groups(r)
	for name, want := range map[string]float64{"goodput": 20.8e6, "bulk/goodput": 20e6, "web/small/goodput": 4e6} {
		if v, ok := Lookup(of, groups, name); !ok || v != want {
			t.Errorf("%s: %v %v, want %v", name, v, ok, want)
		}
	}
	for _, name := range []string{"", "none", "bulk/fct_p50", "none/goodput", "web/small"} {
		if v, ok := Lookup(of, groups, name); ok {
			t.Errorf("%s is %v, want it absent", name, v)
		}
	}
}

func TestFind(t *testing.T) {
	for name, want := range map[string]string{"goodput": "goodput", "web/small/fct_p99": "fct_p99"} {
		if m, ok := Find(name); !ok || m.Name != want {
			t.Errorf("%s: found %q %v", name, m.Name, ok)
		}
	}
	if _, ok := Find("goodput/"); ok {
		t.Error("found a metric without a name")
	}
}

func TestEveryMetricIsDescribed(t *testing.T) {
	units := []string{"bit/s", "s", "s/B", "1/s", "share", ""}
	seen := make(map[string]bool)
	for _, m := range Metrics {
		if seen[m.Name] || m.Name == "" || m.Doc == "" || m.of == nil || m.Better*m.Better != 1 || !slices.Contains(units, m.Unit) {
			t.Errorf("metric %+v is not described, or occurs twice", m)
		}
		seen[m.Name] = true
	}
}
