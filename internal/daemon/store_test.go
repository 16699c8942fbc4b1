package daemon

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/store"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// The store keeps as many paths as the configuration allows, also more than it keeps by itself.
func TestStoreKeepsAllPaths(t *testing.T) {
	const paths = 1<<18 + 1000
	cfg := config.Default()
	cfg.StateDir, cfg.Learning.Paths.Limit = t.TempDir(), paths
	d, u := &Daemon{log: slog.New(slog.DiscardHandler)}, &undo.Stack{}
	if err := d.openStore(cfg, u); err != nil {
		t.Fatal(err)
	}
	defer u.Run()
	all := make([]store.Record, paths)
	for i := range all {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 10<<24+uint32(i)<<8)
		all[i] = store.Record{Rule: "all", Prefix: netip.PrefixFrom(netip.AddrFrom4(a), 24), Belief: []byte("{}")}
	}
	if err := d.store.Save(all, nil); err != nil {
		t.Fatal(err)
	}
	kept := 0
	if err := d.store.Load(func(store.Record) error { kept++; return nil }); err != nil || kept != paths {
		t.Errorf("%d of %d paths kept, %v", kept, paths, err)
	}
}

// What is known of rules that are gone is dropped 30 days after its latest use, and not before: the rule may come back. Variants for pods
// are kept with their rules.
func TestRecordsOfRemovedRulesExpire(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	is := expired([]policy.Rule{{Name: "web"}, {Name: "web@bbr"}}, now)
	for _, c := range []struct {
		rule string
		days int
		want bool
	}{
		{"web", 1000, false}, {"web@bbr", 1000, false}, {"web@reno", 1000, false}, {"@reno", 1000, false},
		{"gone", 29, false}, {"gone", 31, true}, {"gone@bbr", 29, false}, {"gone@bbr", 31, true}, {"gone", -1, false},
	} {
		if got := is(c.rule, now.AddDate(0, 0, -c.days).UnixNano()); got != c.want {
			t.Errorf("%s, used %d days ago: %v", c.rule, c.days, got)
		}
	}

	d := &Daemon{log: slog.New(slog.DiscardHandler), engine: engine.New(engine.Options{Sink: engine.Discard{}, Learner: learn.DefaultThompson()})}
	cfg, u := config.Default(), &undo.Stack{}
	cfg.StateDir = t.TempDir()
	if err := d.openStore(cfg, u); err != nil {
		t.Fatal(err)
	}
	defer u.Run()
	set := policy.Rule{Name: "set", CC: tcp.CC{'r', 'e', 'n', 'o'}, Rollout: 0.5}
	for _, rules := range [][]policy.Rule{{set}, {{Name: "other"}}} {
		if err := d.engine.SetRules(rules, policy.Resolver{}, time.Now().UnixNano()); err != nil {
			t.Fatal(err)
		}
	}
	prefix := netip.MustParsePrefix("10.0.0.0/24")
	record := func(rule string, age time.Duration) store.Record {
		return store.Record{Rule: rule, Prefix: prefix, Belief: []byte("{}"), Last: time.Now().Add(-age).UnixNano()}
	}
	all := []store.Record{record("set", keptWithoutRule+time.Hour), record("gone", time.Hour), record("other", keptWithoutRule+time.Hour)}
	if err := d.store.Save(all, nil); err != nil {
		t.Fatal(err)
	}
	d.save()
	if err := d.store.Save([]store.Record{record("now", 0)}, nil); err != nil { // as the next change of a path
		t.Fatal(err)
	}
	var kept []string
	if err := d.store.Load(func(r store.Record) error { kept = append(kept, r.Rule); return nil }); err != nil {
		t.Fatal(err)
	}
	if slices.Sort(kept); !slices.Equal(kept, []string{"gone", "now", "other"}) {
		t.Errorf("kept %q", kept)
	}
}
