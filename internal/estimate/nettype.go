package estimate

import (
	"math"
	"time"
)

// NetworkType is what kind of network a path looks like, as far as its metrics tell.
type NetworkType uint8

// The types of network.
const (
	UnknownNetwork NetworkType = iota // too little is known, or no type fits
	Datacentre                        // a few switches between the hosts
	LAN                               // wired, within a site or a city
	Wifi                              // a delay that varies by the length of a frame or two
	Cellular                          // a delay that varies more, or long queues besides
	LongFat                           // a long and fast wired path (RFC 7323)
	Satellite                         // a geostationary satellite
	Policed                           // a token bucket drops what exceeds a rate
	Bufferbloated                     // wired, with a queue much longer than the path

	numNetworkTypes
)

var networkNames = [numNetworkTypes]string{
	"unknown", "datacentre", "lan", "wifi", "cellular", "long-fat", "satellite", "policed", "bufferbloated",
}

// NetworkTypes lists every type.
func NetworkTypes() []NetworkType {
	all := make([]NetworkType, numNetworkTypes)
	for i := range all {
		all[i] = NetworkType(i)
	}
	return all
}

// String returns the word that the CLI, the API and the metrics use.
func (t NetworkType) String() string {
	if t >= numNetworkTypes {
		t = UnknownNetwork
	}
	return networkNames[t]
}

// MarshalText writes the type's word.
func (t NetworkType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads a type's word; any other is UnknownNetwork.
func (t *NetworkType) UnmarshalText(text []byte) error {
	*t = UnknownNetwork
	for i, name := range networkNames {
		if name == string(text) {
			*t = NetworkType(i)
		}
	}
	return nil
}

// Bounds of the rules. Times are in microseconds, as metrics are.
const (
	// geostationaryRTT is the time that light needs to a satellite directly above and back,
	// for both directions: 4 x 35786 km. Real positions have 560 ms (RFC 2488, section 2).
	geostationaryRTT = 477e3
	// datacentreRTT is twice the 250 us below which round-trip times without a queue are in M.
	// Alizadeh et al., "Data Center TCP", SIGCOMM 2010; the rest is for virtual switches.
	datacentreRTT = 500
	// lanRTT is what 100 km of fibre take in both directions, 1 ms, and as much for the devices.
	lanRTT = 2e3
	// wifiRTT is less than two frames of 802.11 take with their back-offs and interrupts. A
	// wired host that is busy varies as much below it.
	wifiRTT = 1e3
	// cellularRTT is less than LTE takes from a handset to the core network and back (J.
	// Huang et al., "A Close Examination of Performance and Power Characteristics of 4G LTE
	// Networks", MobiSys 2012: 70 ms to the nearest server).
	cellularRTT = 30e3
	// longRTT is about half of a path across the Atlantic.
	longRTT = 50e3
	// fatBits is ten times what RFC 7323, section 1.1, has in flight on a long fat network, bits.
	fatBits = 1e6

	// fixedShare is the share of the connections close to the floor that met it if the delay
	// is fixed: a wired path without a queue always takes the same time. On emulated wired links
	// it was 0.7 to 1, on radio links 0 to 0.1. varyingShare is the same if times near the floor are equally frequent.
	fixedShare, varyingShare = 0.9, 1. / floorClose
	// sharpFloor is the share from which a fixed delay is the more likely one of the two.
	sharpFloor = 0.6
	// leastSpread is the spread from which a delay varies, and leastSpreadShare the same divided by
	// the floor. On emulated radio links the share was 0.06 to 0.35, on wired ones without a queue
	// less than 0.02.
	leastSpread, leastSpreadShare = 500, 0.03
	// cellularSpread is the mean wait for a frame of 802.11 that is being sent: half of the
	// longest (aPPDUMaxTime, 5484 us). LTE retransmits (HARQ) after 8 ms.
	cellularSpread = 5484 / 2
	// cellularQueue: H. Jiang et al., "Tackling Bufferbloat in 3G/4G Networks", IMC 2012, have
	// queues of several hundred milliseconds in the networks of four carriers.
	cellularQueue = 200e3
	// bloatedQueue is the delay from which the bufferbloat test of waveform.com gives the grade C.
	// bloatedShare is a bound of the queue divided by the floor, which is at most 1 in a buffer of
	// one bandwidth-delay product.
	bloatedQueue, bloatedShare = 60e3, 2

	// leastRTTs is the number of samples from which a least round-trip time is believed.
	leastRTTs = 4
	// floorOdds is the natural logarithm of the odds at which it is known whether the delay is fixed
	// or varies (A. Wald, "Sequential Tests of Statistical Hypotheses", 1945): 50 to 1. It also varies
	// if of leastFloors connections at most the share seldomMet met the floor.
	floorOdds              = 4
	leastFloors, seldomMet = 16, 0.05
	// leastSmall is the number of small connections from which a spread is known.
	leastSmall = 4
)

// measure is a quantity that rules compare with a bound. One that is not known satisfies no
// condition.
type measure uint8

const (
	policedRate measure = iota // bytes/s; unknown if no policer was found
	leastRTT                   // least round-trip time, microseconds
	sharpness                  // share of the connections close to the floor that met it
	spread                     // typical difference of round-trip times within a small connection, microseconds
	spreadShare                // spread divided by the least round-trip time
	queue                      // greatest standing queue, microseconds
	queueShare                 // queue divided by the least round-trip time
	inFlight                   // bandwidth-delay product, bits

	numMeasures
)

// condition is one comparison of a rule: a measure is at least a bound, or below it.
type condition struct {
	measure measure
	below   bool
	bound   float32
}

// networkRules are tried in this order. The first one whose conditions all hold applies.
var networkRules = [...]struct {
	is         NetworkType
	conditions []condition
}{
	{Policed, []condition{{policedRate, false, 1}}},
	{Satellite, []condition{{leastRTT, false, geostationaryRTT}}},
	{Datacentre, []condition{{leastRTT, true, datacentreRTT}}},
	{Cellular, []condition{{leastRTT, false, cellularRTT}, {sharpness, true, sharpFloor}, {spread, false, cellularSpread}, {spreadShare, false, leastSpreadShare}}},
	{Cellular, []condition{{leastRTT, false, cellularRTT}, {sharpness, true, sharpFloor}, {spread, false, leastSpread}, {spreadShare, false, leastSpreadShare}, {queue, false, cellularQueue}}},
	{Wifi, []condition{{leastRTT, false, wifiRTT}, {leastRTT, true, cellularRTT}, {sharpness, true, sharpFloor}, {spread, false, leastSpread}, {spreadShare, false, leastSpreadShare}}},
	{Wifi, []condition{{leastRTT, false, cellularRTT}, {sharpness, true, sharpFloor}, {spread, false, leastSpread}, {spreadShare, false, leastSpreadShare}, {queue, true, cellularQueue}}},
	{Bufferbloated, []condition{{sharpness, false, sharpFloor}, {queue, false, bloatedQueue}, {queueShare, false, bloatedShare}}},
	{LAN, []condition{{leastRTT, true, lanRTT}, {sharpness, false, sharpFloor}}},
	{LAN, []condition{{leastRTT, true, lanRTT}, {sharpness, true, sharpFloor}, {spread, true, leastSpread}}},
	{LongFat, []condition{{leastRTT, false, longRTT}, {sharpness, false, sharpFloor}, {inFlight, false, fatBits}}},
}

// classify returns the type that the metrics show now, and the conditions of its rule.
func (m *measures) classify() (NetworkType, []condition) {
rules:
	for i := range networkRules {
		r := &networkRules[i]
		for _, c := range r.conditions {
			if !c.holds(m[c.measure]) {
				continue rules
			}
		}
		return r.is, r.conditions
	}
	return UnknownNetwork, nil
}

// holds reports whether the condition holds for a value: not if it is not known.
func (c condition) holds(v float32) bool {
	if c.below {
		return known(v) && v < c.bound
	}
	return v >= c.bound
}

// measures are the values of all measures.
type measures [numMeasures]float32

// unknown is the value of a measure that is not known.
const unknown = -1

func known(v float32) bool { return v >= 0 } // nor is NaN

// shown are the measures that the path shows now.
func (p *Path) shown() measures {
	limit, _ := p.Policer.Limit()
	return p.measures(uint64(limit))
}

// measures returns what is known of the path. policed is the rate in bytes/s to which a policer
// was found to limit it, 0 if none was.
func (p *Path) measures(policed uint64) measures {
	m := measures{unknown, unknown, unknown, unknown, unknown, unknown, unknown, unknown}
	if policed > 0 {
		m[policedRate] = float32(policed)
	}
	if p.Floor.decided() {
		m[sharpness] = p.Floor.Met / max(1, p.Floor.Close)
	}
	floor, queued := float32(p.MinRTT.Least()), float32(p.Queue.Greatest())
	if floor == 0 {
		return m
	}
	if p.RTTs >= leastRTTs {
		m[leastRTT] = floor
	}
	if p.Small >= leastSmall {
		m[spread], m[spreadShare] = p.Spread, p.Spread/floor
	}
	if queued > 0 {
		m[queue], m[queueShare] = queued, queued/floor
	}
	if rate := float32(p.Rate.Greatest()); rate > 0 {
		m[inFlight] = rate * 8 * floor / 1e6
	}
	return m
}

// Network is the type of a path. It changes only after the metrics have shown another one for
// some time.
type Network struct {
	Type  NetworkType `json:"type"`
	From  int64       `json:"from_ns"`            // since when the path has had it, Unix nanoseconds; 0 is always
	Next  NetworkType `json:"next,omitempty"`     // what the latest samples show instead; only if Shown is not 0
	Shown uint16      `json:"shown,omitempty"`    // number of the latest samples that show Next
	Since int64       `json:"since_ns,omitempty"` // Unix nanoseconds of the first of these
}

// A type changes after samples have shown another one for half of the time that it lasted, but at
// least leastTime and at most mostTime. So a first guess is soon corrected, and the usual
// variation of a metric near its bound changes nothing. At least leastShown samples are needed, and
// at least one for each leastTime of that time.
const (
	leastShown, leastTime = 4, time.Second
	mostTime              = 10 * time.Second
)

// show notes what type the metrics show with a sample.
func (n *Network) show(t NetworkType, at int64) {
	if t == n.Type {
		*n = Network{Type: t, From: n.From}
		return
	}
	if t != n.Next || n.Shown == 0 {
		*n = Network{Type: n.Type, From: n.From, Next: t, Since: at}
	}
	n.Shown += min(1, math.MaxUint16-n.Shown)
	wait := n.wait()
	if n.Shown >= max(leastShown, uint16(wait/leastTime)) && at-n.Since >= int64(wait) {
		*n = Network{Type: t, From: at}
	}
}

// wait is for how long samples must show another type until it applies.
func (n *Network) wait() time.Duration {
	if n.Type == UnknownNetwork {
		return leastTime
	}
	return min(max(time.Duration(n.Since-n.From)/2, leastTime), mostTime)
}
