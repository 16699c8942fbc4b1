package e2e

import (
	"strings"
	"testing"
)

const (
	sackNr      = "net.ipv4.tcp_comp_sack_nr"
	hostProfile = "host: {sysctls: {" + sackNr + ": 7, net.ipv4.tcp_notsent_lowat: 1048576}}\n"
)

// The sysctls of the host profile are set while tcpilot runs. They go back at the end, after a crash at the next
// start, and by detach, but not one that an administrator has changed. They are no reason to yield a field.
func TestRootHostProfile(t *testing.T) {
	t.Parallel()
	w := newPlainWorld(t, "far")
	must(t, w.star.Client.SetSysctl(sackNr, "20"))
	p := startTcpilot(t, w, settings{keys: hostProfile, rules: objectiveRules})
	want := func(when, nr, lowat string) {
		t.Helper()
		if a, b := w.limit(t, sackNr), w.limit(t, "net.ipv4.tcp_notsent_lowat"); a != nr || b != lowat {
			t.Errorf("%s the sysctls are %s and %s, want %s and %s", when, a, b, nr, lowat)
		}
	}
	const usual = "4294967295"
	want("with tcpilot", "7", "1048576")
	s := p.status(t)
	if len(s.HostSysctls) != 2 || s.HostSysctls[0].Original != "20" || s.HostSysctls[0].Value != "7" || len(s.Yields) != 0 {
		t.Errorf("status shows %+v, yields %+v", s.HostSysctls, s.Yields)
	}
	p.stop(t)
	want("after the end", "20", usual)

	p.start(t)
	p.kill()
	want("after a crash", "7", "1048576")
	if out, err := p.run(t, "detach", "--config", p.config); err != nil || !strings.Contains(string(out), sackNr) {
		t.Errorf("detach: %s, %v", out, err)
	}
	want("after detach", "20", usual)

	p.start(t)
	p.kill()
	p.configure(t, settings{rules: objectiveRules})
	p.start(t)
	want("after a crash, without the profile,", "20", usual)

	p.configure(t, settings{keys: hostProfile, rules: objectiveRules})
	p.stop(t)
	p.start(t)
	must(t, w.star.Client.SetSysctl(sackNr, "9")) // an administrator's
	p.stop(t)
	want("after the administrator's change", "9", usual)
}
