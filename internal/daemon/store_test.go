package daemon

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/store"
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
