package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/engine"
)

// Source is where the metrics are read from.
type Source interface {
	// Snapshot is the engine's latest, nil before the first.
	Snapshot() *engine.Snapshot
	// Counters reads the datapath's.
	Counters() (Counters, error)
}

// other is the label of the sums over all remaining paths, and over all remaining pods.
const other = "other"

// Collector is a prometheus.Collector over a Source. It holds no values: every
// scrape reads the source.
type Collector struct {
	source  Source
	version string
	top     int
}

// NewCollector returns a collector that names the top paths with most samples, and the top pods with
// most connections.
func NewCollector(s Source, version string, top int) *Collector {
	return &Collector{source: s, version: version, top: max(0, top)}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s := &scrape{out: out, seen: map[string]bool{}}
	snap := c.source.Snapshot()
	counters, err := c.source.Counters()
	if snap != nil {
		s.one(buildInfo, 1, c.version, snap.Learner)
		s.engine(snap)
		s.rules(snap)
		s.paths(snap.Paths, c.top)
		counters.NameRules(snap.Rules)
	} else {
		counters.NameRules(nil)
	}
	s.one(datapathUp, truth(err == nil))
	if err == nil {
		s.counters(counters)
		s.pods(counters.Pods, c.top)
		s.podLimits(counters.PodLimits, c.top)
	}
}

// scrape writes the metrics of one scrape.
type scrape struct {
	out  chan<- prometheus.Metric
	seen map[string]bool // series written: a second one would fail the scrape
}

func (s *scrape) one(f *family, v float64, labels ...string) {
	key := f.name
	for _, l := range labels {
		key += "\x00" + l
	}
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	m, err := prometheus.NewConstMetric(f.desc, f.kind, v, labels...)
	if err != nil { // a label that is not UTF-8: the scrape reports the error
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	s.out <- m
}

// known writes v unless it is 0, which then stands for "not known".
func (s *scrape) known(f *family, v float64, labels ...string) {
	if v != 0 {
		s.one(f, v, labels...)
	}
}

func (s *scrape) each(f *family, counts map[string]uint64) {
	for k, n := range counts {
		s.one(f, float64(n), k)
	}
}

func (s *scrape) engine(snap *engine.Snapshot) {
	t := &snap.Totals
	s.one(snapshotTime, unix(snap.At))
	s.one(observing, truth(snap.Mode == engine.ModeObserve))
	s.one(rolledBack, float64(t.RolledBack))
	s.each(samples, t.Samples)
	s.each(sampled, t.Connections)
	s.each(ignored, t.Ignored)
	s.each(policyReasons, t.Decisions)
	s.each(armsRetired, t.Retired)
	s.each(rtoMinBars, t.RTOMinBarred)
	s.one(firstPackets, float64(t.InitialPackets-t.InitialLost), "arrived")
	s.one(firstPackets, float64(t.InitialLost), "lost")
	s.one(firstHalved, float64(t.InitialHalved))
	s.one(unattributed, float64(t.Unattributed))
	s.one(learned, float64(t.ObserveCount))
	s.one(ticks, float64(t.Ticks))
	s.one(tickSeconds, t.TickTime.Seconds())
	s.one(policyWrites, float64(t.Writes))
	s.one(policyErrors, float64(t.WriteErrors))
	s.one(storeErrors, float64(t.StoreErrors))
	if !t.LastSaved.IsZero() {
		s.one(storeSaved, unix(t.LastSaved))
	}
	s.one(pathCount, float64(t.Paths))
	s.one(pathLimit, float64(t.PathLimit))
	s.one(pathEvicted, float64(t.Evicted))
	for _, y := range snap.Yields {
		s.one(yields, 1, y.Field, y.Sysctl)
	}
	for _, cc := range snap.Arms.All() {
		now, _ := snap.Arms.State(cc)
		for _, state := range []string{engine.ArmActive, engine.ArmRetired, engine.ArmMissing} {
			s.one(armState, truth(state == now), cc.String(), state)
		}
	}
}

func (s *scrape) rules(snap *engine.Snapshot) {
	for _, r := range snap.Rules {
		s.one(rulePaths, float64(r.Paths), r.Name)
		s.one(ruleSamples, float64(r.Samples), r.Name)
		s.one(ruleHoldOut, r.HoldOut, r.Name)
		if r.Rollout != nil {
			s.one(ruleRollout, r.Rollout.Share, r.Name)
		}
		s.one(ruleLeft, truth(r.LeftToDefault != nil), r.Name)
		s.gain(ruleGains, r.Gain, r.Name)
	}
}

// gains are the families of a gain.
type gains struct{ ratio, low, high, bySlices *family }

var (
	ruleGains = gains{ruleGain, ruleGainLow, ruleGainHigh, ruleGainBy}
	pathGains = gains{pathGain, pathGainLow, pathGainHigh, pathGainBy}
)

// gain writes a gain with its interval; nothing if there is no interval.
func (s *scrape) gain(f gains, g engine.Gain, labels ...string) {
	if !g.Known() {
		return
	}
	s.one(f.ratio, g.Ratio, labels...)
	s.one(f.low, g.Low, labels...)
	s.one(f.high, g.High, labels...)
	s.one(f.bySlices, truth(g.BySlice), labels...)
}

// paths names the first top paths (the snapshot has most samples first) and
// sums up the rest by rule.
func (s *scrape) paths(paths []*engine.PathState, top int) {
	top = min(top, len(paths))
	for _, p := range paths[:top] {
		s.path(p)
	}
	types := map[string]int{}
	for _, p := range paths {
		types[p.NetworkType]++
	}
	for _, t := range engine.NetworkTypes() {
		s.one(networkPaths, float64(types[t]), t)
	}
	s.rtoMins(paths)
	s.adapted(paths)
	type key struct{ rule, cc string }
	rest := map[string]float64{}   // samples by rule
	counts := map[key][2]float64{} // connections, greedy ones
	weights := map[key]float64{}   // sum of share x samples
	weighted := func(n uint64) float64 { return float64(max(n, 1)) }
	total := map[string]float64{}
	for _, p := range paths[top:] {
		rest[p.Rule] += float64(p.Samples)
		total[p.Rule] += weighted(p.Samples)
		for _, a := range p.Arms {
			k := key{p.Rule, a.CC.String()}
			counts[k] = [2]float64{counts[k][0] + float64(a.Count), counts[k][1] + float64(a.Greedy)}
			weights[k] += a.Weight * weighted(p.Samples)
		}
	}
	for rule, n := range rest {
		s.one(pathSamples, n, rule, other, "")
	}
	for k, n := range counts {
		s.one(pathArmCount, n[0], k.rule, other, "", k.cc)
		s.one(pathArmGreedy, n[1], k.rule, other, "", k.cc)
		s.one(pathArmWeight, weights[k]/total[k.rule], k.rule, other, "", k.cc)
	}
}

// rtoMins counts the paths by their RTO_MIN, and by the value that is barred. Paths of rules that
// do not adapt it have neither.
func (s *scrape) rtoMins(paths []*engine.PathState) {
	given, barred := map[string]int{}, map[string]int{}
	for _, p := range paths {
		if p.RTOMin != 0 {
			given[engine.RTOMinLabel(p.RTOMin)]++
		}
		if p.RTOMinBarred != nil {
			barred[engine.RTOMinLabel(p.RTOMinBarred.RTOMin)]++
		}
	}
	for i, value := range engine.RTOMins() {
		s.one(rtoMinPaths, float64(given[value]), value)
		if i > 0 { // the kernel's value is never barred
			s.one(rtoMinBarred, float64(barred[value]), value)
		}
	}
}

// adapted counts the paths with values that were computed from their metrics, and those with a policer.
func (s *scrape) adapted(paths []*engine.PathState) {
	fields, suspected, found := map[string]int{}, 0, 0
	for _, p := range paths {
		for i := range p.Set {
			if p.Set[i].Computed() {
				fields[p.Set[i].Field]++
			}
		}
		switch {
		case p.RateLimit != 0:
			found++
		case p.RateLimitWhy != "":
			suspected++
		}
	}
	for f, n := range fields {
		s.one(adaptedPaths, float64(n), f)
	}
	s.one(policerPaths, float64(suspected), "suspected")
	s.one(policerPaths, float64(found), "found")
}

func (s *scrape) path(p *engine.PathState) {
	scope := ""
	if p.Scope != 0 {
		scope = strconv.FormatUint(p.Scope, 10)
	}
	l := []string{p.Rule, p.Prefix, scope}
	s.one(pathSamples, float64(p.Samples), l...)
	s.known(pathSRTT, float64(p.SRTT)/1e6, l...)
	s.known(pathMinRTT, float64(p.MinRTT)/1e6, l...)
	s.known(pathRate, float64(p.Rate), l...)
	s.known(pathReceiveRate, float64(p.ReceiveRate), l...)
	if p.Active != nil {
		s.one(pathActive, float64(*p.Active), l...)
	}
	s.known(pathRateLimit, float64(p.RateLimit), l...)
	s.known(pathCarried, float64(p.Carried), l...)
	s.known(pathSsthresh, float64(p.Ssthresh), l...)
	if p.DataSegs > 0 {
		s.one(pathLoss, p.LossShare, l...)
	}
	if !p.Updated.IsZero() {
		s.one(pathMeasured, float64(p.Updated.UnixNano())/1e9, l...)
	}
	s.one(pathHoldOut, float64(p.HoldOut.Count), l...)
	s.gain(pathGains, p.HoldOut.Gain, l...)
	s.one(pathLeft, truth(p.LeftToDefault != nil), l...)
	for i := range p.Arms {
		a := &p.Arms[i]
		l := []string{p.Rule, p.Prefix, scope, a.CC.String()}
		s.one(pathArmWeight, a.Weight, l...)
		s.one(pathArmCount, float64(a.Count), l...)
		s.one(pathArmGreedy, float64(a.Greedy), l...)
		if a.Count > 0 {
			s.one(pathArmReward, a.Mean, l...)
		}
		s.known(pathArmStdDev, a.StdDev, l...)
		s.known(pathArmMinRTT, float64(a.MinRTT)/1e6, l...)
		s.known(pathArmRate, float64(a.Rate), l...)
	}
}

func (s *scrape) counters(c Counters) {
	for _, n := range c.Connections {
		s.one(connections, float64(n.Outgoing), n.Rule, "outgoing")
		s.one(connections, float64(n.Incoming), n.Rule, "incoming")
	}
	for _, n := range c.Decisions {
		s.one(decisions, float64(n.Count), n.Reason)
	}
	for _, n := range c.SetErrors {
		s.one(setErrors, float64(n.Count), n.Field)
	}
	for _, n := range c.ArmFailures {
		s.one(armFailures, float64(n.Count), n.CC)
	}
	for name, sockets := range c.Controls {
		s.one(controlLoaded, 1, name)
		s.one(controlConnections, float64(sockets), name)
	}
	for _, own := range congestion.Own() {
		if _, loaded := c.Controls[own.CC.String()]; !loaded {
			s.one(controlLoaded, 0, own.CC.String())
		}
	}
	for _, n := range c.Events {
		s.one(events, float64(n.Count), n.Rule, n.Event)
	}
	s.one(ringSubmitted, float64(c.Samples.Submitted))
	s.one(ringDropped, float64(c.Samples.Dropped))
	s.one(ringReceived, float64(c.Samples.Received))
	s.one(ringMalformed, float64(c.Samples.Malformed))
	s.one(unseen, float64(c.Unseen.Untracked), "untracked")
	s.one(unseen, float64(c.Unseen.Forgotten), "forgotten")
	s.one(unseen, float64(c.Unseen.Missed), "missed")
	s.one(unseen, float64(c.Unseen.Thinned), "thinned")
	s.one(unseen, float64(c.Unseen.Backwards), "backwards")
	s.one(peerSent, float64(c.Peer.Sent))
	s.one(peerSeen, float64(c.Peer.Seen))
	s.one(peerResent, float64(c.Peer.Resent))
	s.one(peerWithout, float64(c.Peer.Omitted))
	for _, n := range c.Limits {
		if n.Total != 0 {
			s.one(limitTotal, float64(n.Total), n.Rule)
		}
		if n.Connection != 0 {
			s.one(limitConnection, float64(n.Connection), n.Rule)
		}
		s.one(limitMeasured, n.Measured, n.Rule)
		s.one(limitSent, float64(n.Sent), n.Rule)
		s.one(limitConnections, float64(n.Connections), n.Rule)
		s.one(limitActive, float64(n.Active), n.Rule)
	}
	for _, n := range c.Buffers {
		s.one(bufferRaised, float64(n.Raised), n.Sysctl)
		s.one(bufferRaises, float64(n.Raises), n.Sysctl)
		s.one(bufferTakenBack, float64(n.TakenBack), n.Sysctl)
	}
	if n := c.Host; n != nil {
		s.one(hostSysctls, float64(n.Sysctls))
		s.one(hostRoutes, float64(n.Routes))
		s.one(hostRoutesLeft, float64(n.RoutesLeft))
	}
	for _, n := range c.Packets {
		if n.Routed {
			s.one(podRouted, float64(n.Packets), n.Fate)
		} else {
			s.one(podLeft, float64(n.Packets), n.Fate)
		}
	}
	for _, n := range c.Bandwidth {
		s.one(podLimited, float64(n.Limited), n.Direction)
		s.one(podPassed, float64(n.Passed), n.Direction)
		s.one(podMarked, float64(n.Marked), n.Direction)
		s.one(podDropped, float64(n.Dropped), n.Direction)
	}
	if n := c.BigTCP; n != nil {
		s.one(podBigPods, float64(n.Pods))
		s.one(podBigPackets, float64(n.Sent), "egress")
		s.one(podBigPackets, float64(n.Received), "ingress")
	}
	s.programs(c.Programs)
}

// pods names the top pods with most connections, and sums up the rest.
func (s *scrape) pods(list []PodCount, top int) {
	s.one(pods, float64(len(list)))
	byName := map[string]uint64{} // two pods have one name while one replaces the other
	for _, p := range list {
		byName[p.Pod] += p.Connections
	}
	names := mostFirst(byName)
	top = min(top, len(names))
	for _, name := range names[:top] {
		s.one(podConnections, float64(byName[name]), name)
	}
	if top == len(names) {
		return
	}
	rest := uint64(0)
	for _, name := range names[top:] {
		rest += byName[name]
	}
	s.one(podConnections, float64(rest), other)
}

// mostFirst are the names in the order of their counts, the greatest first.
func mostFirst(counts map[string]uint64) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}

// podLimits names the top pods whose limits dropped most packets, and sums up the rest.
func (s *scrape) podLimits(list []PodLimitCount, top int) {
	type series struct{ pod, direction string }
	dropped := map[string]uint64{}
	for _, l := range list {
		dropped[l.Pod] += l.Dropped
	}
	names := mostFirst(dropped)
	named := map[string]bool{}
	for _, name := range names[:min(top, len(names))] {
		named[name] = true
	}
	sums := map[series]PodLimitCount{}
	for _, l := range list {
		at := series{other, l.Direction}
		if named[l.Pod] {
			at.pod = l.Pod
		}
		sum := sums[at]
		sum.Limit, sum.Passed, sum.Marked, sum.Dropped = max(sum.Limit, l.Limit), sum.Passed+l.Passed, sum.Marked+l.Marked, sum.Dropped+l.Dropped
		sums[at] = sum
	}
	for at, l := range sums {
		if at.pod != other {
			s.one(podLimit, float64(l.Limit), at.pod, at.direction)
		}
		s.one(podLimitPassed, float64(l.Passed), at.pod, at.direction)
		s.one(podLimitMarked, float64(l.Marked), at.pod, at.direction)
		s.one(podLimitDropped, float64(l.Dropped), at.pod, at.direction)
	}
}

// programs sums the programs of one name: a label by id would grow at every
// restart.
func (s *scrape) programs(programs []ProgramStats) {
	runs, run := map[string]uint64{}, map[string]time.Duration{}
	for _, p := range programs {
		if p.Stats {
			runs[p.Name] += p.RunCount
			run[p.Name] += p.RunTime
		}
	}
	for name, n := range runs {
		s.one(programRuns, float64(n), name)
		s.one(programSeconds, run[name].Seconds(), name)
	}
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func truth[B ~bool](b B) float64 {
	if b {
		return 1
	}
	return 0
}
