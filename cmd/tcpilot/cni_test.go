package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// A removal that does not wait for anything any more, because the daemon has removed the last record, is finished by 'cni gc'.
func TestRootCollectFinishesTheRemoval(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	o := cli.CNIOptions{ConfDir: filepath.Join(dir, "net.d"), BinDir: filepath.Join(dir, "bin"), Records: filepath.Join(dir, "pods"), CacheDir: filepath.Join(dir, "cache")}
	program := filepath.Join(o.BinDir, "tcpilot-cni")
	for _, path := range []string{o.ConfDir, o.BinDir} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	p := pod.Pod{Network: "tcpilot", Container: "c1", Interface: "eth0", NetNS: "/no/such/directory", Cookie: 7}
	if err := podrecord.Dir(o.Records).Put(&p); err != nil {
		t.Fatal(err)
	}
	if c, err := uninstallCNI(o); err != nil || !slices.Equal(c.Waits, []string{"c1"}) || c.Stays != program+" stays: it waits for the end of pod c1" {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := podrecord.Dir(o.Records).Delete(p.Key()); err != nil {
		t.Fatal(err)
	}
	for _, o.DryRun = range []bool{true, false} {
		c, err := collectCNI(context.Background(), o, func(cli.CNIAttachment) {})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(program); (err == nil) != o.DryRun || slices.Equal(c.Uninstalled, []string{"removed " + program}) == o.DryRun {
			t.Errorf("dry run %v: %+v, %v", o.DryRun, c, err)
		}
	}
}
