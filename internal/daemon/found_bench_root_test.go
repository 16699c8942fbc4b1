package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// BenchmarkRootFindPods looks through the cgroups of 200 pods of three containers each for one whose processes are not there.
func BenchmarkRootFindPods(b *testing.B) {
	testenv.Root(b)
	node := testenv.Cgroup(b)
	var made []string
	mkdir := func(elem ...string) {
		path := filepath.Join(append([]string{node.Path}, elem...)...)
		if err := os.Mkdir(path, 0o755); err != nil {
			b.Fatal(err)
		}
		made = append(made, path)
	}
	b.Cleanup(func() {
		for i := len(made) - 1; i >= 0; i-- {
			if err := os.Remove(made[i]); err != nil {
				b.Error(err)
			}
		}
	})
	const above = "kubepods-burstable.slice"
	mkdir(above)
	for i := range 200 {
		name := fmt.Sprintf("kubepods-burstable-pod00000000_0000_0000_0000_%012x.slice", i)
		mkdir(above, name)
		for c := range 3 {
			mkdir(above, name, fmt.Sprint("cri-containerd-", c, ".scope"))
		}
	}
	const uid = "00000000-0000-0000-0000-000000000001"
	missing := map[string]pod.Pod{uid: {UID: uid}}
	for b.Loop() {
		if err := findPods(missing, 1, time.Now(), map[string]pod.Pod{}); err != nil {
			b.Fatal(err)
		}
	}
}
