package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
)

func TestMain(m *testing.M) {
	load.RunIfAgent()
	testenv.Main(m)
}

func TestScreen(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		s := &screen{out: &out, paint: console.Painter{On: terminal}, scale: 100e6}
		s.connection(3, 36, "bbr", 50e6, "bbr 97%")
		s.connection(4, 36, "cubic", 250e6, "")
		s.summary(10e6, 50e6, 18, path{})
		text := out.String()
		for _, want := range []string{"3/36 bbr", "50 Mbit/s", "5.0x"} {
			if !strings.Contains(text, want) {
				t.Errorf("terminal %v: no %q in\n%s", terminal, want, text)
			}
		}
		if strings.Contains(text, "\x1b") != terminal {
			t.Errorf("terminal %v: wrong use of escape sequences in\n%q", terminal, text)
		}
		if !terminal && !strings.Contains(text, strings.Repeat("#", 15)+strings.Repeat(".", 15)) {
			t.Errorf("no bar of half the length for half of the scale in\n%s", text)
		}
	}
}

func TestShares(t *testing.T) {
	p := path{Arms: []arm{{"cubic", 0.02}, {"bbr", 0.95}, {"reno", 0.03}}}
	if got, want := p.shares(), "bbr 95%  reno 3%  cubic 2%"; got != want {
		t.Errorf("shares = %q, want %q", got, want)
	}
}

// binary builds tcpilot.
func binary(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "tcpilot")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/tcpilot/tcpilot/cmd/tcpilot").CombinedOutput()
	if err != nil {
		t.Fatalf("build tcpilot: %v\n%s", err, out)
	}
	return bin
}

// leftBehind lists what runs left in the file system.
func leftBehind(t *testing.T) (left []string) {
	t.Helper()
	for _, dir := range []string{"/run/netns", "/run", testenv.CgroupRoot(t)} {
		names, _ := filepath.Glob(filepath.Join(dir, "tcpilot-*"))
		for _, n := range names {
			if strings.HasPrefix(filepath.Base(n), "tcpilot-"+strconv.Itoa(os.Getpid())+".") {
				left = append(left, n)
			}
		}
	}
	return left
}

func TestRootDemo(t *testing.T) {
	testenv.Root(t)
	var out bytes.Buffer
	err := Run(t.Context(), Options{Binary: binary(t), Stdout: &out, Loss: 0.05,
		Baseline: 3, Learning: 16, Each: 250 * time.Millisecond})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"Without tcpilot", "With tcpilot", "gain", "removed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q", want)
		}
	}
	t.Log("\n" + out.String())
	if left := leftBehind(t); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

func TestRootDemoCleansUpWhenInterrupted(t *testing.T) {
	testenv.Root(t)
	bin := binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := Run(ctx, Options{Binary: bin, Stdout: &bytes.Buffer{}, Baseline: 2, Learning: 100, Each: 250 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an interrupted demo ended with %v", err)
	}
	if left := leftBehind(t); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

func TestRootDemoThatCannotStartCleansUp(t *testing.T) {
	testenv.Root(t)
	err := Run(t.Context(), Options{Binary: "/bin/false", Stdout: &bytes.Buffer{}, Baseline: 1, Each: 50 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "start tcpilot") {
		t.Errorf("a tcpilot that ends at once: %v", err)
	}
	if left := leftBehind(t); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}
