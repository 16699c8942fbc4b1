package pod

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The annotations of Kubernetes that limit the bandwidth of a pod: quantities in bits per second.
const (
	EgressAnnotation  = "kubernetes.io/egress-bandwidth"
	IngressAnnotation = "kubernetes.io/ingress-bandwidth"
)

// Bandwidth is a limit for each direction, as the pod sees it, in bits per second; 0 is no limit. It has no
// bursts, because runtimes pass 2^32-1 or 2^64-1 bits for any rate.
type Bandwidth struct {
	Egress  uint64 `json:"egress_bits_per_second,omitempty"`
	Ingress uint64 `json:"ingress_bits_per_second,omitempty"`
}

const (
	// leastBandwidth and mostBandwidth are what Kubernetes accepts, bits per second
	// (minRsrc and maxRsrc in pkg/util/bandwidth).
	leastBandwidth = 1e3
	mostBandwidth  = 1e15
	// maxQuantity is the length in bytes of the longest text that is read as a quantity.
	maxQuantity = 64
)

// Annotate replaces the annotations with which the pod began. A limit ends with its annotation: what the runtime asks for comes from the
// annotation as well.
func (p *Pod) Annotate(annotations map[string]string) {
	end := func(annotation string, asked *uint64) {
		_, began := p.Annotations[annotation]
		if _, has := annotations[annotation]; began && !has {
			*asked = 0
		}
	}
	end(EgressAnnotation, &p.Bandwidth.Egress)
	end(IngressAnnotation, &p.Bandwidth.Ingress)
	p.Annotations = annotations
}

// Limits returns the bandwidth limits of the pod: from its annotations or, for a direction without
// one, as the runtime asked. A limit that is not valid is left out; wrong says why.
func (p *Pod) Limits() (limits Bandwidth, wrong []string) {
	limit := func(annotation string, asked uint64) uint64 {
		source := "annotation " + annotation
		text, annotated := p.Annotations[annotation]
		var v float64
		var err error
		switch {
		case annotated:
			v, err = parseBandwidth(text)
		case asked != 0:
			source, text = "capability bandwidth of the container runtime", strconv.FormatUint(asked, 10)
			v, err = float64(asked), checkBandwidth(float64(asked))
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %.40q %v: no limit", source, text, err))
			return 0
		}
		return uint64(v)
	}
	limits.Egress = limit(EgressAnnotation, p.Bandwidth.Egress)
	limits.Ingress = limit(IngressAnnotation, p.Bandwidth.Ingress)
	return limits, wrong
}

// parseBandwidth reads a bandwidth as Kubernetes does, in bits per second.
func parseBandwidth(text string) (float64, error) {
	v, err := parseQuantity(text)
	if err != nil {
		return 0, err
	}
	v = math.Ceil(v) // Quantity.Value
	return v, checkBandwidth(v)
}

func checkBandwidth(v float64) error {
	switch {
	case v < leastBandwidth:
		return errors.New("is less than 1k (1 kbit/s)")
	case v > mostBandwidth:
		return errors.New("is more than 1P (1 Pbit/s)")
	}
	return nil
}

// multipliers are the factors of the suffixes of quantities, except exponents.
var multipliers = map[string]float64{
	"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}

// parseQuantity reads a quantity of Kubernetes (k8s.io/apimachinery/pkg/api/resource: Quantity), such
// as 10M, 1.5G, 64Ki or 1e6. That package would make the program several megabytes larger.
func parseQuantity(s string) (float64, error) {
	suffix := strings.TrimLeft(s, "+-0123456789.")
	by, known := multipliers[suffix]
	if !known && (suffix[0] == 'e' || suffix[0] == 'E') {
		exponent, err := strconv.Atoi(suffix[1:])
		by, known = math.Pow10(exponent), err == nil
	}
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, suffix), 64)
	if v *= by; err != nil || !known || len(s) > maxQuantity || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, errors.New("is not a quantity, such as 10M or 1.5G")
	}
	return v, nil
}
