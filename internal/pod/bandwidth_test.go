package pod

import (
	"math"
	"strings"
	"testing"
)

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		egress, ingress string // annotations; empty: none
		runtime         Bandwidth
		want            Bandwidth
		wrong           string
	}{
		{},
		{egress: "10M", ingress: "1G", want: Bandwidth{10e6, 1e9}},
		{egress: "500k", want: Bandwidth{Egress: 500e3}},
		{ingress: "1.5G", want: Bandwidth{Ingress: 1.5e9}},
		{egress: "64Ki", ingress: "+1e6", want: Bandwidth{65536, 1e6}},
		{egress: "1k", ingress: "1P", want: Bandwidth{1e3, 1e15}},
		{egress: "999.5", want: Bandwidth{Egress: 1000}}, // rounded up first, as Kubernetes does
		{egress: "1E3", ingress: "2500000m", want: Bandwidth{1000, 2500}},
		{egress: "999", wrong: "annotation kubernetes.io/egress-bandwidth: \"999\" is less than 1k (1 kbit/s): no limit"},
		{egress: "10M", ingress: "2P", want: Bandwidth{Egress: 10e6}, wrong: "annotation kubernetes.io/ingress-bandwidth: \"2P\" is more than 1P (1 Pbit/s): no limit"},
		{egress: "-10M", ingress: "10Mbit", wrong: "annotation kubernetes.io/egress-bandwidth: \"-10M\" is less than 1k (1 kbit/s): no limit; " +
			"annotation kubernetes.io/ingress-bandwidth: \"10Mbit\" is not a quantity, such as 10M or 1.5G: no limit"},
		{runtime: Bandwidth{15e6, 4e6}, want: Bandwidth{15e6, 4e6}},
		{egress: "10M", runtime: Bandwidth{15e6, 4e6}, want: Bandwidth{10e6, 4e6}},
		{egress: "fast", runtime: Bandwidth{Egress: 15e6}, wrong: "annotation kubernetes.io/egress-bandwidth: \"fast\" is not a quantity, such as 10M or 1.5G: no limit"},
		{runtime: Bandwidth{math.MaxUint64, 1}, wrong: "capability bandwidth of the container runtime: \"18446744073709551615\" is more than 1P (1 Pbit/s): no limit; " +
			"capability bandwidth of the container runtime: \"1\" is less than 1k (1 kbit/s): no limit"},
	} {
		p := Pod{Bandwidth: c.runtime, Annotations: map[string]string{}}
		if c.egress != "" {
			p.Annotations[EgressAnnotation] = c.egress
		}
		if c.ingress != "" {
			p.Annotations[IngressAnnotation] = c.ingress
		}
		got, wrong := p.Limits()
		if text := strings.Join(wrong, "; "); got != c.want || text != c.wrong {
			t.Errorf("%q, %q, %+v: %+v, %q, want %+v, %q", c.egress, c.ingress, c.runtime, got, text, c.want, c.wrong)
		}
	}
}

func TestWrongQuantities(t *testing.T) {
	for _, s := range []string{"", "k", ".", "1.2.3", "1 M", "10M ", "1KB", "1K", "1e", "1e1.5", "1e99999", "0x10", "inf", "NaN", "1_000", "--1", "1-", strings.Repeat("0", 65)} {
		if v, err := parseQuantity(s); err == nil {
			t.Errorf("%q is %v", s, v)
		}
	}
}

// Whatever an annotation has, the limit is none or one that Kubernetes accepts, and a message is short and
// on one line.
func FuzzLimits(f *testing.F) {
	for _, s := range []string{"10M", "1.5G", "1e6", "1E", "1Ei", "-1k", "", "1e-2147483649", "\x00", "10M\n", "9999999999999999999999999999999999999999999P"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, wrong := (&Pod{Annotations: map[string]string{EgressAnnotation: s}}).Limits()
		if ok := b.Egress >= leastBandwidth && b.Egress <= mostBandwidth; ok != (wrong == nil) || !ok && b.Egress != 0 || b.Ingress != 0 {
			t.Errorf("%q: %+v, %q", s, b, wrong)
		}
		if text := strings.Join(wrong, "\n"); len(text) > 400 || strings.ContainsAny(text, "\n\r\x00\x1b") {
			t.Errorf("%q: %q", s, text)
		}
	})
}
