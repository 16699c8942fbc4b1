package podrecord

import (
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// A clock that is set forwards or back does not change the age of a pod that was added since the boot.
func TestAge(t *testing.T) {
	var now pod.Pod
	if err := SetAdded(&now); err != nil {
		t.Fatal(err)
	}
	if now.Boot == "" || now.Uptime <= 0 || time.Since(now.Added) > time.Minute {
		t.Errorf("added: %+v", now)
	}
	for _, c := range []struct {
		what   string
		change func(*pod.Pod)
		want   time.Duration
	}{
		{"now", func(*pod.Pod) {}, 0},
		{"the clock was set back by an hour", func(p *pod.Pod) { p.Added = p.Added.Add(time.Hour) }, 0},
		{"the clock was set forwards by an hour", func(p *pod.Pod) { p.Added = p.Added.Add(-time.Hour) }, 0},
		{"two minutes ago, and the clock was set back", func(p *pod.Pod) { p.Added, p.Uptime = p.Added.Add(time.Hour), p.Uptime-2*time.Minute }, 2 * time.Minute},
		{"before the boot, by a clock that was behind", func(p *pod.Pod) { p.Boot = "other"; p.Added = p.Added.Add(time.Hour) }, now.Uptime},
		{"long before the boot", func(p *pod.Pod) { p.Boot = "other"; p.Added = p.Added.Add(-now.Uptime - time.Hour) }, now.Uptime + time.Hour},
		{"by the clock alone", func(p *pod.Pod) { p.Boot, p.Uptime = "", 0; p.Added = p.Added.Add(-time.Hour) }, time.Hour},
		{"by the clock alone, which was set back", func(p *pod.Pod) { p.Boot, p.Uptime = "", 0; p.Added = p.Added.Add(time.Hour) }, time.Hour},
	} {
		p := now
		c.change(&p)
		if age := Age(&p); (age - c.want).Abs() > 10*time.Second {
			t.Errorf("%s: %v, want %v", c.what, age, c.want)
		}
	}
}
