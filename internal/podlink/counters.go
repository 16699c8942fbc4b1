package podlink

import "fmt"

// Count is the number of packets of pods that were routed in one way, or left to the host's stack for one reason.
// A packet of several segments (GSO) counts as one.
type Count struct {
	Name   string
	Routed bool // by the programs; otherwise left to the host's stack, for the reason Name
	Count  uint64
}

var countNames = [abiPodCountNUM_POD_COUNTS]string{
	abiPodCountROUTED_POD_TO_POD:  "pod-to-pod",
	abiPodCountROUTED_POD_TO_WIRE: "pod-to-wire",
	abiPodCountROUTED_WIRE_TO_POD: "wire-to-pod",

	abiPodCountLEFT_LINK:          "link",
	abiPodCountLEFT_MALFORMED:     "malformed",
	abiPodCountLEFT_OPTIONS:       "options",
	abiPodCountLEFT_FRAGMENT:      "fragment",
	abiPodCountLEFT_PROTOCOL:      "protocol",
	abiPodCountLEFT_TTL:           "ttl",
	abiPodCountLEFT_SOURCE:        "source",
	abiPodCountLEFT_DESTINATION:   "destination",
	abiPodCountLEFT_NAT:           "nat",
	abiPodCountLEFT_NOT_FORWARDED: "not-forwarded",
	abiPodCountLEFT_NO_FORWARDING: "forwarding-off",
	abiPodCountLEFT_BLACKHOLE:     "blackhole",
	abiPodCountLEFT_UNREACHABLE:   "unreachable",
	abiPodCountLEFT_PROHIBIT:      "prohibit",
	abiPodCountLEFT_ENCAP:         "encapsulation",
	abiPodCountLEFT_TOO_LONG:      "too-long",
	abiPodCountLEFT_DEVICE:        "device",
	abiPodCountLEFT_LOOKUP:        "lookup",
}

// Counters are sums over all CPUs since the maps were made: they outlive the daemon.
func (l *Links) Counters() ([]Count, error) {
	l.reading.RLock()
	defer l.reading.RUnlock()
	var perCPU []abiPodCounters
	if err := l.objs.PodCounts.Lookup(uint32(0), &perCPU); err != nil {
		return nil, fmt.Errorf("read counters of pods' packets: %w", err)
	}
	counts := make([]Count, len(countNames))
	for i, name := range countNames {
		counts[i] = Count{Name: name, Routed: i < int(abiPodCountLEFT_LINK)}
		for _, cpu := range perCPU {
			counts[i].Count += cpu.N[i]
		}
	}
	return counts, nil
}
