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
	// leastSpread is the spread from which a delay varies, and leastSpreadShare the same in
	// floors. On emulated radio links the share was 0.06 to 0.35, on wired ones without a queue
	// less than 0.02.
	leastSpread, leastSpreadShare = 500, 0.03
	// cellularSpread is the mean wait for a frame of 802.11 that is being sent: half of the
	// longest (aPPDUMaxTime, 5484 us). LTE sends again after 8 ms.
	cellularSpread = 5484 / 2
	// cellularQueue: H. Jiang et al., "Tackling Bufferbloat in 3G/4G Networks", IMC 2012, have
	// queues of several hundred milliseconds in the networks of four carriers.
	cellularQueue = 200e3
	// bloatedQueue is the delay from which the test of waveform.com grades a path C, and bloatedShare
	// the same in floors: the queue in a buffer of one bandwidth-delay product has at most 1.
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

// measure is a quantity that rules compare with a bound. One that is not known is NaN, which no
// bound fits.
type measure uint8

const (
	policedRate measure = iota // bytes/s; unknown if no policer was found
	leastRTT                   // least round-trip time, microseconds
	sharpness                  // share of the connections close to the floor that met it
	spread                     // typical difference of round-trip times within a small connection, microseconds
	spreadShare                // the same in floors
	queue                      // greatest standing queue, microseconds
	queueShare                 // the same in floors
	inFlight                   // bandwidth-delay product, bits
)

// condition is one comparison of a rule: a measure is at least a bound, or below it.
type condition struct {
	measure measure
	below   bool
	bound   float64
}

// networkRules are tried in this order; the first one applies whose conditions all hold.
var networkRules = [...]struct {
	is         NetworkType
	conditions []condition
}{
	{Policed, []condition{{policedRate, false, 1}}},
	{Satellite, []condition{{leastRTT, false, geostationaryRTT}}},
	{Datacentre, []condition{{leastRTT, true, datacentreRTT}}},
	{Cellular, []condition{{leastRTT, false, cellularRTT}, {sharpness, true, sharpFloor}, {spread, false, cellularSpread}, {spreadShare, false, leastSpreadShare}}},
	{Cellular, []condition{{leastRTT, false, cellularRTT}, {sharpness, true, sharpFloor}, {spread, false, leastSpread}, {spreadShare, false, leastSpreadShare}, {queue, false, cellularQueue}}},
	{Wifi, []condition{{leastRTT, false, wifiRTT}, {sharpness, true, sharpFloor}, {spread, false, leastSpread}, {spreadShare, false, leastSpreadShare}}},
	{Bufferbloated, []condition{{sharpness, false, sharpFloor}, {queue, false, bloatedQueue}, {queueShare, false, bloatedShare}}},
	{LAN, []condition{{leastRTT, true, lanRTT}, {sharpness, false, sharpFloor}}},
	{LAN, []condition{{leastRTT, true, lanRTT}, {sharpness, true, sharpFloor}, {spread, true, leastSpread}}},
	{LongFat, []condition{{leastRTT, false, longRTT}, {sharpness, false, sharpFloor}, {inFlight, false, fatBits}}},
}

// classify returns the type that the metrics show now, and the conditions of its rule. policed
// is the rate in bytes/s to which a policer was found to limit the path, 0 if none was.
func (p *Path) classify(policed uint64) (NetworkType, []condition) {
rules:
	for i := range networkRules {
		r := &networkRules[i]
		for _, c := range r.conditions {
			if !c.holds(p.measure(c.measure, policed)) {
				continue rules
			}
		}
		return r.is, r.conditions
	}
	return UnknownNetwork, nil
}

// holds reports whether the condition holds for a value: not if it is NaN.
func (c condition) holds(v float64) bool {
	if c.below {
		return v < c.bound
	}
	return v >= c.bound
}

// measure returns a measure of the path; NaN if it is not known.
func (p *Path) measure(m measure, policed uint64) float64 {
	floor := float64(p.MinRTT.Least())
	known, v := false, 0.
	switch m {
	case policedRate:
		known, v = policed > 0, float64(policed)
	case leastRTT:
		known, v = floor > 0 && p.RTTs >= leastRTTs, floor
	case sharpness:
		known, v = p.Floor.decided(), float64(p.Floor.Met/max(1, p.Floor.Close))
	case spread:
		known, v = p.Small >= leastSmall, math.Exp2(float64(p.Spread))
	case spreadShare:
		known, v = p.Small >= leastSmall && floor > 0, math.Exp2(float64(p.Spread))/floor
	case queue:
		v = float64(p.Queue.Greatest())
		known = v > 0
	case queueShare:
		v = float64(p.Queue.Greatest()) / floor
		known = v > 0 && floor > 0
	case inFlight:
		v = float64(p.Rate.Greatest()) * 8 * floor / 1e6
		known = v > 0
	}
	if !known {
		return math.NaN()
	}
	return v
}

// Network is the type of a path, which changes only after its metrics have shown another one for some
// time.
type Network struct {
	Type  NetworkType `json:"type"`
	Next  NetworkType `json:"next,omitempty"`     // what the latest samples show instead; only if Shown is not 0
	Shown uint16      `json:"shown,omitempty"`    // number of the latest samples that show Next
	Since int64       `json:"since_ns,omitempty"` // Unix nanoseconds of the first of these
}

// A type that was unknown becomes known after this many samples and this time; it changes
// after more of both, so that the usual variation of a metric near its bound does not change it.
const (
	firstSamples, firstTime   = 4, time.Second
	changeSamples, changeTime = 16, 10 * time.Second
)

// show notes what type the metrics show with a sample.
func (n *Network) show(t NetworkType, at int64) {
	if t == n.Type {
		*n = Network{Type: t}
		return
	}
	if t != n.Next || n.Shown == 0 {
		*n = Network{Type: n.Type, Next: t, Since: at}
	}
	n.Shown += min(1, math.MaxUint16-n.Shown)
	samples, wait := n.wait()
	if n.Shown >= samples && at-n.Since >= int64(wait) {
		*n = Network{Type: t}
	}
}

// wait is how many samples, and for how long, must show another type until it applies.
func (n *Network) wait() (samples uint16, wait time.Duration) {
	if n.Type == UnknownNetwork {
		return firstSamples, firstTime
	}
	return changeSamples, changeTime
}
