package datapath

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestABILimits(t *testing.T) {
	for _, c := range []struct {
		name string
		c    abiAbiLimits
		want int
	}{
		{"NUM_FIELDS", abiAbiLimitsNUM_FIELDS, int(tcp.NumFields)},
		{"MAX_ARMS", abiAbiLimitsMAX_ARMS, path.MaxArms},
		{"CC_NAME", abiAbiLimitsCC_NAME, len(tcp.CC{})},
		{"MAX_RULES", abiAbiLimitsMAX_RULES, class.MaxRules},
		{"SET_WORDS", abiAbiLimitsSET_WORDS, len(class.Set{})},
		{"MAX_SAME_PREFIX", abiAbiLimitsMAX_SAME_PREFIX, class.MaxSamePrefix},
		{"MAX_PORT_SETS", abiAbiLimitsMAX_PORT_SETS, class.MaxPortRanges},
		{"MAX_CC", abiAbiLimitsMAX_CC, maxCC},
	} {
		if int(c.c) != c.want {
			t.Errorf("%s is %d in bpf/include/abi.h and %d in Go", c.name, c.c, c.want)
		}
	}
	if abiAbiLimitsNO_ARM < abiAbiLimitsMAX_CC || abiAbiLimitsNO_ARM > 255 {
		t.Error("NO_ARM is an arm, or does not fit one byte")
	}
	if abiAbiLimitsARM_DEFAULT < abiAbiLimitsMAX_CC || abiAbiLimitsARM_DEFAULT >= abiAbiLimitsNO_ARM {
		t.Error("ARM_DEFAULT is another arm")
	}
	if int(tcp.NumFields) > 63 {
		t.Error("YIELD_CC is the bit of a field")
	}
	if n := 2*class.MaxRules + 1; class.MaxPortRanges != n {
		t.Errorf("%d port ranges, want %d", class.MaxPortRanges, n)
	}
}

func TestABIFlags(t *testing.T) {
	for c, want := range map[abiSampleFlags]tcp.Flags{
		abiSampleFlagsF_OUTGOING:       tcp.FlagOutgoing,
		abiSampleFlagsF_HOLD_OUT:       tcp.FlagHoldOut,
		abiSampleFlagsF_APP_CC:         tcp.FlagAppCC,
		abiSampleFlagsF_ARM_FAILED:     tcp.FlagArmFailed,
		abiSampleFlagsF_CC_CHANGED:     tcp.FlagCCChanged,
		abiSampleFlagsF_APP_LIMITED:    tcp.FlagAppLimited,
		abiSampleFlagsF_ECN:            tcp.FlagECN,
		abiSampleFlagsF_ECN_SEEN:       tcp.FlagECNSeen,
		abiSampleFlagsF_ADOPTED:        tcp.FlagAdopted,
		abiSampleFlagsF_DEFAULT_ARM:    tcp.FlagDefaultArm,
		abiSampleFlagsF_HOLD_OUT_SLICE: tcp.FlagHoldOutSlice,
		abiSampleFlagsF_RCVBUF_MAX:     tcp.FlagRcvbufMax,
		abiSampleFlagsF_SNDBUF_MAX:     tcp.FlagSndbufMax,
		abiSampleFlagsF_LATER:          tcp.FlagLater,
		abiSampleFlagsF_PEER_SENT:      tcp.FlagPeerSent,
		abiSampleFlagsF_PEER_RESENT:    tcp.FlagPeerResent,
	} {
		if tcp.Flags(c) != want {
			t.Errorf("flag %#x is %#x in Go", c, want)
		}
		if c&abiSampleFlagsF_SAMPLE == 0 {
			t.Errorf("flag %#x must not leave the kernel", c)
		}
	}
	if tcp.Flags(abiSampleFlagsF_MASK) != tcp.FlagHoldOutSlice<<1-1 {
		t.Errorf("F_MASK is %#x", abiSampleFlagsF_MASK)
	}
	for c, want := range map[abiClassFlags]class.Class{
		abiClassFlagsCLASS_LEAVE:                                  {Leave: true},
		abiClassFlagsCLASS_PEER_ANY:                               {PeerAny: true},
		abiClassFlagsCLASS_OWN_SCOPE:                              {OwnScope: true},
		abiClassFlagsCLASS_NAMED:                                  {Named: true},
		abiClassFlagsCLASS_SWITCH | abiClassFlagsCLASS_FOLLOW_ALL: {Switch: true},
	} {
		if got := classEntry(want).Flags; got != uint32(c) {
			t.Errorf("%+v has flags %#x, want %#x", want, got, c)
		}
	}
}

func TestABICCFlags(t *testing.T) {
	for c, want := range map[abiCcFlags]tcp.CCFlags{
		abiCcFlagsCC_ECN:       tcp.CCFlagECN,
		abiCcFlagsCC_FULL_PIPE: tcp.CCFlagFullPipe,
		abiCcFlagsCC_KNOWN:     tcp.CCFlagKnown,
	} {
		if tcp.CCFlags(c) != want || want&^tcp.AllCCFlags != 0 {
			t.Errorf("flag %#x is %#x in Go", c, want)
		}
	}
}

// TestABICCModes: the modes of each control in the catalogue are those of enum NAME_mode in
// its source: the C names, without case, prefix and underscores.
func TestABICCModes(t *testing.T) {
	for _, own := range congestion.Own() {
		name := strings.TrimPrefix(own.CC.String(), congestion.Prefix)
		if got := modesInSource(t, name+".bpf.c"); len(got) == 0 || !slices.Equal(own.Modes, got) {
			t.Errorf("%s has the modes %q in the catalogue, %q in bpf/cc", name, own.Modes, got)
		}
	}
}

var (
	includedCC = regexp.MustCompile(`(?m)^#include "([a-z0-9_]+\.bpf\.h)"`)
	modesOfCC  = regexp.MustCompile(`(?ms)^enum ([a-z0-9]+)_mode \{(.*?)^\};`)
	enumerator = regexp.MustCompile(`(?m)^\t([A-Z0-9_]+)( = |,)`)
)

// modesInSource reads the modes from bpf/cc/file, or from a header that it includes. The
// text is read because enums that no object's data uses are not in its BTF.
func modesInSource(t *testing.T, file string) (modes []string) {
	t.Helper()
	src, err := os.ReadFile("../../bpf/cc/" + file)
	must(t, err)
	if enum := modesOfCC.FindStringSubmatch(string(src)); enum != nil {
		prefix := strings.ToUpper(enum[1]) + "_"
		var names []string
		for _, v := range enumerator.FindAllStringSubmatch(enum[2], -1) {
			if v[2] != "," {
				t.Errorf("%s: %s has a value of its own; names follow the order", file, v[1])
			}
			names = append(names, strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(v[1], prefix)), "_", "-"))
		}
		return names
	}
	for _, include := range includedCC.FindAllStringSubmatch(string(src), -1) {
		if modes = modesInSource(t, include[1]); modes != nil {
			return modes
		}
	}
	return nil
}

// objectTypes is the BTF of an embedded object.
func objectTypes(t *testing.T, raw []byte) *btf.Spec {
	t.Helper()
	s, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	must(t, err)
	return s
}

// enums collects every enumerator of every enum in bpf/include/abi.h from the header
// itself, because enums that no object uses are not in its BTF.
func enums(t *testing.T) map[string]uint64 {
	t.Helper()
	src, err := os.ReadFile("../../bpf/include/abi.h")
	must(t, err)
	out := map[string]uint64{}
	item := regexp.MustCompile(`(?m)^\t([A-Z][A-Z0-9_]*) = (?:(\d+) << )?(\d+|0x[0-9a-f]+),`)
	for _, m := range item.FindAllStringSubmatch(string(src), -1) {
		v, err := strconv.ParseUint(m[3], 0, 64)
		must(t, err)
		if m[2] != "" {
			v = number(m[2]) << v
		}
		out[m[1]] = v
	}
	return out
}

func number(s string) (n uint64) {
	for _, c := range s {
		n = n*10 + uint64(c-'0')
	}
	return n
}

func TestABIHeaderConstants(t *testing.T) {
	in := enums(t)
	for name, want := range map[string]uint64{
		"FIELD_SYN_RTO": uint64(tcp.SynRTO), "FIELD_SYNACK_RTO": uint64(tcp.SynAckRTO),
		"FIELD_INIT_CWND": uint64(tcp.InitCwnd), "FIELD_MAX_PACING_RATE": uint64(tcp.MaxPacingRate),
		"FIELD_INIT_RWND": uint64(tcp.InitRwnd), "FIELD_ECN": uint64(tcp.ECN), "FIELD_BASE_RTT": uint64(tcp.BaseRTT),
		"DIM_REMOTE": uint64(class.DimRemote), "DIM_LOCAL": uint64(class.DimLocal),
		"DIM_REMOTE_PORT": uint64(class.DimRemotePort), "DIM_LOCAL_PORT": uint64(class.DimLocalPort),
		"DIM_CGROUP": uint64(class.DimCgroup), "DIM_NETNS": uint64(class.DimNetNS),
		"DIM_DIRECTION": uint64(class.DimDirection), "DIM_SAME_PREFIX": uint64(class.DimSamePrefix),
		"SAMPLE_CLOSE": uint64(tcp.KindClose), "SAMPLE_INTERVAL": uint64(tcp.KindInterval),
		"SAMPLE_FAILED_CONNECT": uint64(tcp.KindFailedConnect),
		"PATH_V4":               pathV4, "PATH_SCOPED": pathScoped, "PROBE_UNTRIED": probeUntried, "BANKS": 2,
		"CC_NO_BOUND": tcp.NoBound,
	} {
		if got, ok := in[name]; !ok || got != want {
			t.Errorf("%s is %d in bpf/include/abi.h (there: %v), want %d", name, got, ok, want)
		}
	}
	for name := range in {
		if strings.HasPrefix(name, "FIELD_") && len(requestOps) != 6 {
			t.Errorf("%s: %d request fields in Go", name, len(requestOps))
		}
	}
	header, err := os.ReadFile("../../bpf/include/abi.h")
	must(t, err)
	if yield := uint64(yieldCC); yield != 1<<63 || !strings.Contains(string(header), "#define YIELD_CC (1ULL << 63)") {
		t.Error("YIELD_CC differs")
	}
}

// TestABICounters: every counter is read.
func TestABICounters(t *testing.T) {
	var e *btf.Enum
	must(t, objectTypes(t, _AbiBytes).TypeByName("counter", &e))
	if n := len(e.Values) - 1; n != int(abiCounterNUM_COUNTERS) {
		t.Errorf("%d counters in the object, %d in Go", n, abiCounterNUM_COUNTERS)
	}
	f, err := parser.ParseFile(token.NewFileSet(), "counters.go", nil, 0)
	must(t, err)
	var used []string
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			used = append(used, id.Name)
		}
		return true
	})
	for _, v := range e.Values {
		if !slices.Contains(used, "abiCounter"+v.Name) {
			t.Errorf("%s is counted but not read", v.Name)
		}
	}
}

// TestABILayout compares each Go struct with the same struct in the BTF of every object
// that has it: the name of each member (without case and underscores), its offset and its
// size.
func TestABILayout(t *testing.T) {
	for name, v := range map[string]any{
		"rule_set": abiRuleSet{}, "rule_prefix": abiRulePrefix{}, "rule_id": abiRuleId{}, "rule_bank": abiRuleBank{},
		"same_prefix": abiSamePrefix{}, "class_entry": abiClassEntry{}, "path_key": abiPathKey{},
		"path_policy": abiPathPolicy{}, "runtime_config": abiRuntimeConfig{}, "track": abiTrack{}, "conn_sample": abiConnSample{}, "cc_state": abiCcState{},
		"class_count": abiClassCount{}, "counters": abiCounters{}, "event_key": abiEventKey{}, "sock_option": abiSockOption{},
		"probe_result": abiProbeResult{},
	} {
		found := 0
		for object, raw := range map[string][]byte{"abi": _AbiBytes, "sockops": _SockopsBytes, "iter": _IterBytes, "probe": _ProbeBytes} {
			var st *btf.Struct
			if objectTypes(t, raw).TypeByName(name, &st) != nil {
				continue
			}
			found++
			compareLayout(t, object+"/"+name, st, reflect.TypeOf(v))
		}
		if found == 0 {
			t.Errorf("%s is in no object", name)
		}
	}
}

// letters is a name without underscores: bpf2go keeps some of them.
func letters(name string) string { return strings.ReplaceAll(name, "_", "") }

func compareLayout(t *testing.T, name string, c *btf.Struct, g reflect.Type) {
	t.Helper()
	if uintptr(c.Size) != g.Size() {
		t.Errorf("%s: %d bytes in C, %d in Go", name, c.Size, g.Size())
	}
	var fields []reflect.StructField
	for f := range g.Fields() {
		if f.Name != "_" {
			fields = append(fields, f)
		}
	}
	if len(fields) != len(c.Members) {
		t.Errorf("%s: %d members in C, %d in Go", name, len(c.Members), len(fields))
		return
	}
	for i, m := range c.Members {
		f := fields[i]
		size, err := btf.Sizeof(m.Type)
		must(t, err)
		if !strings.EqualFold(letters(m.Name), letters(f.Name)) || uintptr(m.Offset.Bytes()) != f.Offset || uintptr(size) != f.Type.Size() {
			t.Errorf("%s: member %s at %d, %d bytes, in C; %s at %d, %d bytes, in Go", name, m.Name, m.Offset.Bytes(), size, f.Name, f.Offset, f.Type.Size())
		}
	}
}

// TestABIMaps: the sizes of maps are those that Go assumes.
func TestABIMaps(t *testing.T) {
	hooks, err := sockopsSpec(tcp.CC{})
	must(t, err)
	if cpus, err := ebpf.PossibleCPU(); err != nil || hooks.Maps["counters"].MaxEntries != uint32(cpus) {
		t.Errorf("counters for %d CPUs, want %d (%v)", hooks.Maps["counters"].MaxEntries, cpus, err)
	}
	if want := uint32(2 * class.MaxPrefixes); hooks.Maps["remote_rules"].MaxEntries != want || hooks.Maps["local_rules"].MaxEntries != want {
		t.Error("class.MaxPrefixes is not half of remote_rules and local_rules")
	}
	for name, size := range map[string]int{
		"port_rules": 2 * 2 * numPorts, "port_sets": 2 * 2 * maxPortSets, "classes": 2 * class.MaxRules,
		"set_failures": int(tcp.NumFields) + maxCC,
	} {
		if got := hooks.Maps[name].MaxEntries; int(got) != size {
			t.Errorf("%s has %d entries, want %d", name, got, size)
		}
	}
	if hooks.Maps["samples"].Type != ebpf.RingBuf {
		t.Error("samples is no ring buffer")
	}
}

// TestWakeUpScheme: samples.go and bpf/sockops/report.bpf.h agree on the times of
// wake-ups.
func TestWakeUpScheme(t *testing.T) {
	src, err := os.ReadFile("../../bpf/sockops/report.bpf.h")
	must(t, err)
	m := regexp.MustCompile(`WAKE_INTERVAL_NS \((\d+) \* 1000000ULL\)`).FindSubmatch(src)
	if m == nil {
		t.Fatal("WAKE_INTERVAL_NS is not found")
	}
	if wake := time.Duration(number(string(m[1]))) * time.Millisecond; batchPause <= wake || busyPause < batchPause {
		t.Errorf("the reader pauses for %v or %v, and is woken every %v", batchPause, busyPause, wake)
	}
	// A reader that blocks has found the ring empty, and has paused for longer than
	// the wake-up for its last batch suppresses the next one. So the poll covers only
	// unexpected faults.
	if safetyPoll > 5*time.Second {
		t.Errorf("a record whose wake-up was lost may wait for %v", safetyPoll)
	}
}
