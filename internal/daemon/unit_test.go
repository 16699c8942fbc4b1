package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

func getCC(fd int) (string, error) {
	return unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
}

func TestEvery(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	err := every(ctx, time.Millisecond, func() error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	})
	if err != nil || n < 3 {
		t.Errorf("%d calls, %v", n, err)
	}
	if err := every(context.Background(), time.Hour, func() error { return os.ErrClosed }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestDiffRules(t *testing.T) {
	r := diffRules([]policy.Rule{{Name: "a"}, {Name: "b"}, {Name: "c"}}, []policy.Rule{{Name: "b", Leave: true}, {Name: "c"}, {Name: "d"}})
	if strings.Join(r.Added, "") != "d" || strings.Join(r.Removed, "") != "a" || strings.Join(r.Changed, "") != "b" {
		t.Errorf("%+v", r)
	}
}

func TestCheckAndWarnings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("rules:\n  - {name: a, match: {cgroup: [/no/such/cgroup], netns: [no-such-netns]}, set: {cc: nosuchcc, rto_min: 5000us}}\n  - {name: b, learn: {}}\n")
	rules, err := Check(file)
	if err != nil || len(rules) != 4 || rules[2].Name != "a" {
		t.Errorf("%+v, %v", rules, err)
	}
	if set := rules[2].Set; len(set) != 1 || set[0].Configured != "5000us" {
		t.Errorf("values are not as they are written: %+v", set)
	}
	warnings, err := Warnings(file)
	if err != nil || len(warnings) != 3 {
		t.Errorf("%q, %v", warnings, err)
	}
	for _, want := range []string{"nosuchcc", "/no/such/cgroup", "no-such-netns"} {
		if !strings.Contains(strings.Join(warnings, "\n"), want) {
			t.Errorf("no warning about %s: %q", want, warnings)
		}
	}
	for text, want := range map[string]string{
		"cgroup: /tmp":               "cgroup /tmp: find cgroup: stat ",
		"cgroup: /nosuch":            "taken as relative to its root",
		"socket: {group: nosuch}":    "socket.group: group nosuch does not exist here",
		"socket: {admins: nosuch}":   "socket.admins: group nosuch does not exist here",
		"socket: {read: {group: x}}": "socket.read.group: group x does not exist here",
	} {
		write(text)
		if warnings, err := Warnings(file); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], want) {
			t.Errorf("%s: %q, %v", text, warnings, err)
		}
	}
	write("socket: {group: 0, admins: root}")
	if warnings, err := Warnings(file); err != nil || len(warnings) != 0 {
		t.Errorf("%q, %v", warnings, err)
	}
	write("rules: [{name: a, lern: {}}]")
	var mistakes yamlfile.Errors
	if _, err := Check(file); !errors.As(err, &mistakes) {
		t.Errorf("error %v", err)
	}
}

// The README's example is valid, and shows what it does: backups has a fixed congestion
// control and learns nothing.
func TestCheckOfTheReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, found := strings.Cut(rest, "```\n")
	file := filepath.Join(t.TempDir(), "tcpilot.yaml")
	if err := os.WriteFile(file, []byte(example), 0o600); err != nil || !found {
		t.Fatalf("no example: %v", err)
	}
	rules, err := Check(file)
	if err != nil || len(rules) != 5 {
		t.Fatalf("%d rules, %v", len(rules), err)
	}
	if r := rules[2]; r.Name != "backups" || r.CC.String() != "reno" || len(r.Arms) != 0 || r.Action != "set" {
		t.Errorf("%+v", r)
	}
	if r := rules[4]; len(r.Arms) != 2 || r.CC != (tcp.CC{}) {
		t.Errorf("%+v", r)
	}
}

// What an objective decides is shown with that reason; what the file names, as before.
func TestCheckShowsTheObjective(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tcpilot.yaml")
	if err := os.WriteFile(file, []byte(`builtin_rules: false
rules:
  - {name: games, match: {local_port: [1]}, set: {nodelay: true}, learn: {objective: realtime}, adapt: [rto_min]}
  - {name: own, learn: {objective: realtime}, set: {notsent_lowat: 1MiB}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	rules, err := Check(file)
	if err != nil || len(rules) != 2 {
		t.Fatalf("%d rules, %v", len(rules), err)
	}
	text := func(r *engine.RuleState) (list []string) {
		for _, s := range slices.Concat(r.Set, r.AdaptBounds) {
			list = append(list, fmt.Sprint(s.Field, " ", s.Value, " ", s.Reason, " ", s.Configured))
		}
		return list
	}
	if got, want := text(&rules[0]), []string{"notsent_lowat 16384 objective ", "nodelay 1 rule true", "rto_min 25000 objective "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := text(&rules[1]), []string{"notsent_lowat 1048576 rule 1MiB"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Hosts with the same secret have the same key; without a secret the datapath draws a
// key.
func TestSliceKey(t *testing.T) {
	if sliceKey("") != [16]byte{} {
		t.Error("without a secret there is a key")
	}
	if a := sliceKey("fleet"); a != sliceKey("fleet") || a == sliceKey("fleet ") || a == [16]byte{} {
		t.Errorf("a secret gives the key %x", a)
	}
}

// A file that has no end, or that waits for a writer, is not read while the daemon runs,
// not even the default file.
func TestReloadReadsRegularFiles(t *testing.T) {
	fifo, missing := t.TempDir()+"/fifo", t.TempDir()+"/missing"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, standard, want string }{
		{fifo, missing, "is a FIFO"},
		{"", fifo, "is a FIFO"},
		{missing, fifo, "no such file"},
		{"", missing, ""},
	} {
		cfg, read, err := loadConfigAgain(c.file, c.standard)
		if c.want == "" && (err != nil || cfg == nil || read != "") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %q, %v", c, read, err)
		}
	}
}

// fakeSlots counts the calls that free slots.
type fakeSlots struct {
	used, freed int
	err         error
}

func (f *fakeSlots) UsedSlots() (used, all int, err error) { return f.used, 16384, f.err }

func (f *fakeSlots) FreeLost(time.Duration) (int, error) {
	f.freed++
	return f.used, f.err
}

// A connection that no walk found may live in a network namespace that is not listed: it keeps its
// slot until others need it.
func TestSlotsAreFreedWhenScarce(t *testing.T) {
	for used, want := range map[int]int{1: 0, 8000: 0, 8192: 1, 16384: 1} {
		var log strings.Builder
		f := &fakeSlots{used: used}
		freeLost(f, time.Minute, slog.New(slog.NewTextHandler(&log, nil)))
		if f.freed != want || (log.Len() > 0) != (want > 0) {
			t.Errorf("%d of 16384 used: freed %d times, want %d; log %q", used, f.freed, want, log.String())
		}
	}
	var log strings.Builder
	f := &fakeSlots{used: 16384, err: os.ErrClosed}
	freeLost(f, time.Minute, slog.New(slog.NewTextHandler(&log, nil)))
	if f.freed != 0 || !strings.Contains(log.String(), "closed") {
		t.Errorf("freed %d times, log %q", f.freed, log.String())
	}
}

func TestPIDNamespaceProblem(t *testing.T) {
	for link, want := range map[string]bool{"pid:[4026531836]": false, "pid:[4026532501]": true, "": false} {
		whole, part := config.Default(), config.Default()
		part.Cgroup = "/system.slice"
		if p := pidProblem(whole, link); (p != "") != want {
			t.Errorf("%q: %q", link, p)
		}
		if p := pidProblem(part, link); p != "" {
			t.Errorf("%q, attached to one cgroup: %q", link, p)
		}
	}
}

// A rule that counts several timeouts is told if the kernel counts only those in succession.
func TestTimeoutProblems(t *testing.T) {
	rules := []policy.Rule{{Name: "none"}, {Name: "first", OnRTO: policy.OnRTO{CC: tcp.CCOf("bbr"), After: 1, Share: 1}},
		{Name: "third", OnRTO: policy.OnRTO{CC: tcp.CCOf("bbr"), After: 3, Share: 1}}}
	for all, want := range map[bool]int{true: 0, false: 1} {
		got := timeoutProblems(rules, func() (bool, error) { return all, nil })
		if len(got) != want || want == 1 && !strings.HasPrefix(got[0], "rule third: ") {
			t.Errorf("the kernel counts all: %v: %q", all, got)
		}
	}
	timeoutProblems(rules[:2], func() (bool, error) { t.Error("tested although no rule needs it"); return false, nil })
}

func TestPrivilegeProblems(t *testing.T) {
	all := uint64(1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_PTRACE)
	if list := privilegeProblems(all); len(list) > 0 {
		t.Errorf("%q", list)
	}
	list := privilegeProblems(all &^ (1 << unix.CAP_SYS_PTRACE))
	if len(list) != 1 || !strings.HasPrefix(list[0], "CAP_SYS_PTRACE is missing: network namespaces") {
		t.Errorf("%q", list)
	}
}
