package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"
)

func goneAttachment(container, failure string) CNIAttachment {
	return CNIAttachment{Container: container, Interface: "eth0", Network: "mynet", Pod: "shop/web-" + container, NetNS: "/run/netns/x",
		Addresses: []string{"10.1.0.5", "fd00::5"}, Why: "its network namespace /run/netns/x does not exist", Removed: failure == "", Error: failure}
}

func TestCNICollect(t *testing.T) {
	w := newWorld(t)
	var asked CNIOptions
	found := CNICollected{Kept: 2, Gone: []CNIAttachment{}, Unclear: []CNIAttachment{}, Leases: []CNILease{}}
	w.env.CollectCNI = func(_ context.Context, o CNIOptions, done func(CNIAttachment)) (CNICollected, error) {
		asked = o
		for _, one := range found.Gone {
			done(one)
		}
		return found, nil
	}
	if r := w.run(t.Context(), "cni", "gc"); r.code != 0 || r.stdout != "nothing to remove; 2 attachments of pods that exist\n" || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	if asked.CacheDir != "/var/lib/cni" || asked.OlderThan != time.Minute || asked.DryRun || asked.Records != "/var/lib/tcpilot/pods" || asked.BinDir != "/opt/cni/bin" {
		t.Errorf("asked for %+v", asked)
	}
	found.Uninstalled = []string{"removed /opt/cni/bin/tcpilot-cni"}
	if r := w.run(t.Context(), "cni", "gc"); r.code != 0 || r.stdout != "removed /opt/cni/bin/tcpilot-cni, because the plugin is uninstalled, and no pod needs it any more\n" {
		t.Errorf("%+v", r)
	}
	found.Uninstalled = nil
	found.Gone = []CNIAttachment{goneAttachment("1", "")}
	const line = "shop/web-1 (container 1, eth0, network mynet, 10.1.0.5, fd00::5): its network namespace /run/netns/x does not exist\n"
	if r := w.run(t.Context(), "cni", "gc"); r.code != 0 || r.stdout != "removed "+line {
		t.Errorf("%+v", r)
	}
	if r := w.run(t.Context(), "cni", "gc", "--dry-run", "--older-than", "5s"); r.stdout != "would remove "+line || !asked.DryRun || asked.OlderThan != 5*time.Second {
		t.Errorf("%+v, asked %+v", r, asked)
	}
	found.Gone = append(found.Gone, goneAttachment("2", "plugin portmap failed"))
	found.Gone[0].Pod = ""
	found.Unclear = []CNIAttachment{{Container: "3", Interface: "eth0", Network: "mynet", Why: "it was added\x1b[2J only 3s ago"}}
	found.Leases = []CNILease{{"mynet", "10.1.0.9", "4", "/var/lib/cni/networks/mynet/10.1.0.9"}}
	r := w.run(t.Context(), "cni", "gc")
	for _, want := range []string{
		"removed container 1 (eth0, network mynet, 10.1.0.5, fd00::5): its",
		"not removed: shop/web-2 (container 2, eth0, network mynet, 10.1.0.5, fd00::5): its network namespace /run/netns/x does not exist: plugin portmap failed\n",
		"kept container 3 (eth0, network mynet): it was added",
		"warning: host-local keeps 10.1.0.9 of network mynet for container 4, of which nothing is known: if the container runtime does not have it either, remove /var/lib/cni/networks/mynet/10.1.0.9\n",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	if r.code != 1 || !strings.Contains(r.stderr, "1 attachment not removed") || strings.Contains(r.stdout, "\x1b[2J") {
		t.Errorf("%+v", r)
	}
	r = w.run(t.Context(), "cni", "gc", "--json")
	var got CNICollected
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != 1 || len(got.Gone) != 2 || got.Gone[1].Error == "" || got.Leases[0].Address != "10.1.0.9" || got.Kept != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCNICollectRefuses(t *testing.T) {
	w := newWorld(t)
	w.env.CollectCNI = func(context.Context, CNIOptions, func(CNIAttachment)) (CNICollected, error) {
		return CNICollected{}, fmt.Errorf("list records of pods: %w", fs.ErrPermission)
	}
	if r := w.run(t.Context(), "cni", "gc"); r.code != 1 || !strings.Contains(r.stderr, "list records of pods") || !strings.Contains(r.stderr, "be root (sudo)") {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"--older-than", "-1s"}, {"--follow", "--dry-run"}, {"x"}} {
		if r := w.run(t.Context(), append([]string{"cni", "gc"}, args...)...); r.code != 2 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// --follow writes what it removes, and a failure once.
func TestCNICollectFollows(t *testing.T) {
	w := newWorld(t)
	calls := 0
	w.env.CollectCNI = func(context.Context, CNIOptions, func(CNIAttachment)) (CNICollected, error) {
		if calls++; calls == 1 {
			return CNICollected{Gone: []CNIAttachment{goneAttachment("1", ""), goneAttachment("2", "busy")}, Uninstalled: []string{"removed it"}}, nil
		}
		return CNICollected{}, errors.New("never")
	}
	r := w.runUntil(t.Context(), "removed it, because", 1, "cni", "gc", "--follow")
	if r.code != 0 || calls != 1 || strings.Count(r.stdout, "\n") != 2 || !strings.HasPrefix(r.stdout, "removed shop/web-1") || !strings.Contains(r.stderr, "not removed: shop/web-2") || !strings.HasSuffix(r.stderr, "busy; trying again\n") {
		t.Errorf("%d calls, %+v", calls, r)
	}
}
