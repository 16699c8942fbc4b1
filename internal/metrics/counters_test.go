package metrics

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/engine"
)

func TestNameRulesSumsRemovedClasses(t *testing.T) {
	orig := []ClassCount{{Class: 0, Outgoing: 1}, {Class: 1, Incoming: 2}, {Class: 7, Outgoing: 3}, {Class: 8, Outgoing: 4, Incoming: 1}}
	c := Counters{
		Connections: orig,
		Events: []EventCount{{Class: 1, Event: "rto", Count: 1}, {Class: 7, Event: "rto", Count: 2},
			{Class: 8, Event: "rto", Count: 3}, {Class: 8, Event: "state", Count: 4}},
	}
	c.NameRules([]engine.RuleState{{Name: "web", Class: 1}})
	want := []ClassCount{{Class: 0, Rule: noRule, Outgoing: 1}, {Class: 1, Rule: "web", Incoming: 2},
		{Class: 0, Rule: removedRule, Outgoing: 7, Incoming: 1}}
	if len(c.Connections) != len(want) {
		t.Fatalf("Connections = %+v, want %+v", c.Connections, want)
	}
	for i := range want {
		if c.Connections[i] != want[i] {
			t.Errorf("Connections[%d] = %+v, want %+v", i, c.Connections[i], want[i])
		}
	}
	if len(c.Events) != 3 || c.Events[1].Rule != removedRule || c.Events[1].Count != 5 || c.Events[2].Event != "state" {
		t.Errorf("Events = %+v", c.Events)
	}
	if orig[2].Rule != "" || orig[2].Outgoing != 3 {
		t.Errorf("the caller's slice was changed: %+v", orig)
	}
	c.NameRules(nil)
	if len(c.Connections) != 3 || c.Connections[2].Outgoing != 7 {
		t.Errorf("a second call changed the counts: %+v", c.Connections)
	}
}

func TestLost(t *testing.T) {
	if n := (SampleCount{Submitted: 100, Dropped: 2, Received: 98, Malformed: 3}).Lost(); n != 5 {
		t.Errorf("Lost = %d, want 5", n)
	}
}

func TestSort(t *testing.T) {
	c := Counters{Decisions: []ReasonCount{{"b", 1}, {"a", 1}, {"c", 2}}, SetErrors: []FieldCount{{"x", 1}, {"y", 2}},
		ArmFailures: []ArmCount{{"bbr", 0}, {"cubic", 7}}, Events: []EventCount{{Class: 2, Event: "rto"}, {Class: 1, Event: "state"}, {Class: 1, Event: "rto"}}}
	c.Sort()
	if d := c.Decisions; d[0].Reason != "c" || d[1].Reason != "a" || d[2].Reason != "b" {
		t.Errorf("Decisions = %v", d)
	}
	if c.SetErrors[0].Field != "y" || c.ArmFailures[0].CC != "cubic" {
		t.Errorf("SetErrors = %v, ArmFailures = %v", c.SetErrors, c.ArmFailures)
	}
	if e := c.Events; e[0].Event != "rto" || e[0].Class != 1 || e[2].Class != 2 {
		t.Errorf("Events = %v", e)
	}
}
