package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/class"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// buildRules makes the rules in order of matching: the built-in ones, then the
// file's, or the default one if it has none.
func buildRules(d *decoder, c *Config, raw *fileRules) []policy.Rule {
	var rules []policy.Rule
	if c.BuiltinRules {
		rules = builtinRules(c.Metrics.Listen)
	}
	builtin := len(rules)
	if len(raw.Rules) == 0 {
		return append(rules, policy.Rule{
			Name:  "default",
			Learn: &policy.Learn{Objective: learn.Throughput, HoldOut: c.Learning.HoldOut},
			Adapt: policy.AdaptedByDefault,
		})
	}
	lines := map[string]string{ // the names that metrics use for connections without a rule
		"none":    "is what metrics call connections that no rule matches",
		"removed": "is what metrics call connections of rules that were removed",
	}
	for _, r := range rules {
		lines[r.Name] = "is a built-in rule"
	}
	for i := range raw.Rules {
		r := &raw.Rules[i]
		rules = append(rules, d.rule(r, c.Learning.HoldOut))
		if r.Name == "" {
			if !d.broken[r] {
				d.Fail(d.at[r], "the rule has no name", "add name: and a word of your choice")
			}
			continue
		}
		at := d.at[&r.Name]
		if where, dup := lines[r.Name]; dup {
			d.Fail(at, fmt.Sprintf("%q %s", r.Name, where), "give every rule its own name")
			continue
		}
		lines[r.Name] = fmt.Sprintf("is the name of the rule in line %d", at.Line)
	}
	if most := class.MaxRules - builtin; len(raw.Rules) > most {
		d.Fail(d.at[&raw.Rules[most]],
			fmt.Sprintf("%d rules, of which %d are built in", len(rules), builtin),
			fmt.Sprintf("keep at most %d; one rule takes lists of prefixes and ports", most))
		return nil
	}
	d.checkSame(raw)
	d.checkRoom(raw, rules, builtin)
	d.checkShadows(raw, rules, builtin)
	return rules
}

// builtinRules excludes loopback and tcpilot's own traffic.
func builtinRules(listen string) []policy.Rule {
	rules := []policy.Rule{{
		Name:    "loopback",
		Builtin: true,
		Leave:   true,
		Match: policy.Match{Remote: []netip.Prefix{
			netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
		}},
	}}
	_, text, err := net.SplitHostPort(listen)
	port, err2 := strconv.ParseUint(text, 10, 16)
	if err != nil || err2 != nil || port == 0 {
		return rules // metrics are off, or the port is not known beforehand
	}
	return append(rules, policy.Rule{
		Name:    "own-traffic",
		Builtin: true,
		Leave:   true,
		Match:   policy.Match{LocalPort: []policy.PortRange{{First: uint16(port), Last: uint16(port)}}},
	})
}

// rule makes a rule from its form in the file, and checks that its parts are consistent.
func (d *decoder) rule(r *fileRule, holdOut float64) policy.Rule {
	p := policy.Rule{Name: r.Name, Match: r.Match.build(), Leave: r.Leave != nil && *r.Leave}
	before := d.Failed
	if s := r.Set; s != nil {
		p.Set, p.CC = s.params, s.cc
	}
	if r.Learn != nil {
		p.Learn = r.Learn.build(holdOut)
	}
	if r.Limit != nil {
		p.Limit = d.rateLimit(r.Limit)
	}
	p.Adapt = d.adapt(r, &p)
	d.bounds(r, &p)
	p.UseObjective()
	if r.Rollout != nil && *r.Rollout < 1 { // 100 % is the same as no rollout
		p.Rollout = *r.Rollout
	}
	if r.Watch != nil {
		p.Watch = d.watch(r.Watch)
	}
	if r.OnRTO != nil {
		p.OnRTO = d.onRTO(r.OnRTO)
	}
	d.checkAction(r, &p)
	d.checkMatch(r, &p)
	if d.Failed > before {
		d.broken[r] = true
	}
	return p
}

func (m *fileMatch) build() policy.Match {
	p := policy.Match{
		Remote: m.Remote, Local: m.Local,
		RemotePort: m.RemotePort, LocalPort: m.LocalPort,
		Cgroup: m.Cgroup, NetNS: m.NetNS,
		Direction: m.Direction,
	}
	if m.Pod != nil {
		p.Pod = &pod.Match{Namespace: m.Pod.Namespace, Name: m.Pod.Name, Annotations: m.Pod.Annotation}
	}
	if m.Same != nil {
		p.Same = policy.Same{IPv4: m.Same.IPv4, IPv6: m.Same.IPv6}
	}
	return p
}

func (l *fileLearn) build(holdOut float64) *policy.Learn {
	p := &policy.Learn{Arms: l.Arms, Objective: l.Objective, HoldOut: holdOut, OwnScope: l.Scope == "netns", SwitchRunning: l.SwitchRunning}
	if l.HoldOut != nil {
		p.HoldOut = *l.HoldOut
	}
	return p
}

// defaultWatchShare is the share of connections watched by default: enough to characterise a
// path, at negligible cost.
const defaultWatchShare = 0.01

func (d *decoder) watch(w *fileWatch) policy.Watch {
	p := policy.Watch{Share: defaultWatchShare}
	if w.Share != nil {
		p.Share = *w.Share
	}
	for _, e := range policy.WatchEvents {
		if slices.Contains(w.Events, e.Name) {
			p.Events |= e.Bit
		}
	}
	if p.Events == 0 && !d.broken[w] && !d.broken[&w.Events] {
		d.Fail(d.at[w], "no events are named", "add events: [rto, retransmit]")
	}
	return p
}

// defaultAfter is the default of on_rto.after.
const defaultAfter = 3

func (d *decoder) onRTO(o *fileOnRTO) policy.OnRTO {
	p := policy.OnRTO{CC: o.CC, After: cmp.Or(o.After, defaultAfter), Share: 1}
	if o.Share != nil {
		p.Share = *o.Share
	}
	if p.CC == (tcp.CC{}) && !d.broken[o] && !d.broken[&o.CC] {
		d.Fail(d.at[o], "no congestion control is named", "add cc: and its name")
	}
	if congestion.Of(p.CC).NeedsECN {
		d.Fail(d.at[&o.CC], fmt.Sprintf("%s needs ECN, which a running connection cannot negotiate any more", p.CC), "name one that does not, such as bbr")
	}
	return p
}

func (d *decoder) rateLimit(l *fileLimit) policy.RateLimit {
	switch {
	case d.broken[l] || d.broken[&l.Total] || d.broken[&l.Connection]:
	case l.Total == 0 && l.Connection == 0:
		d.Fail(d.at[l], "no rate is named", "write such as {total: 100Mbit/s, connection: 20Mbit/s}")
	case l.Total != 0 && l.Connection > l.Total:
		d.Fail(d.at[&l.Connection], "one connection may have more than all together", "lower it, or remove it")
	}
	return policy.RateLimit{Total: uint64(l.Total), Connection: uint64(l.Connection)}
}

// bounds sets the bounds of the fields that a rule adapts.
func (d *decoder) bounds(r *fileRule, p *policy.Rule) {
	b := &r.Bounds
	for _, x := range []struct {
		field tcp.Field
		at    any
		value uint64
	}{
		{tcp.InitCwnd, &b.InitCwnd, uint64(b.InitCwnd)},
		{tcp.ResumeCwnd, &b.Resume, uint64(b.Resume)},
		{tcp.InitRwnd, &b.InitRwnd, uint64(b.InitRwnd)},
		{tcp.SynRTO, &b.SynRTO, uint64(b.SynRTO.Milliseconds())},
		{tcp.SynAckRTO, &b.SynAckRTO, uint64(b.SynAckRTO.Milliseconds())},
		{tcp.RTOMin, &b.RTOMin, uint64(b.RTOMin.Microseconds())},
		{tcp.DelackMax, &b.DelackMax, uint64(b.DelackMax.Microseconds())},
		{tcp.MaxPacingRate, &b.Pacing, uint64(b.Pacing)},
		{tcp.CwndClamp, &b.CwndClamp, uint64(b.CwndClamp)},
	} {
		switch {
		case x.value == 0 || d.broken[x.at]:
		case !slices.Contains(p.Adapt, x.field):
			d.Fail(d.at[x.at], "the rule does not adapt "+x.field.String(), "add it to adapt, or remove the bound")
		default:
			p.Bounds.Set(x.field, x.value)
		}
	}
}

// adapt returns the fields that a rule adapts to its paths.
func (d *decoder) adapt(r *fileRule, p *policy.Rule) (fields []tcp.Field) {
	if d.broken[&r.Adapt] || p.Leave || len(r.Adapt) == 0 && p.Learn == nil {
		return nil
	}
	fail := func(problem, whatToDo string) { d.Fail(d.at[&r.Adapt], problem, whatToDo) }
	each := func(wanted func(tcp.Field) bool) {
		for _, f := range policy.Adaptive {
			if p.Match.CannotApply(f) == "" && p.MayAdapt(f) && wanted(f) {
				fields = append(fields, f)
			}
		}
	}
	switch has := func(word string) bool { return slices.Contains(r.Adapt, word) }; {
	case len(r.Adapt) > 1 && (has("auto") || has("off") || has("default")):
		fail("auto, off and default cannot be combined with other values", "write one of these, or names of fields only")
		return nil
	case has("off"):
		return nil
	case has("auto"):
		each(func(f tcp.Field) bool { return !policy.ByNameOnly(f) })
	case len(r.Adapt) == 0 || has("default"):
		each(func(f tcp.Field) bool { return slices.Contains(policy.AdaptedByDefault, f) })
	default:
		for _, key := range r.Adapt {
			f, _ := tcp.FieldByName(key) // one of those that the tag names
			switch why := p.Match.CannotApply(f); {
			case slices.Contains(fields, f):
				fail(key+" is in the list twice", "remove one of them")
			case p.Set.Mask()&(1<<f) != 0:
				fail("the rule sets "+key+" as well", "remove it from adapt, or from set")
			case f == tcp.MaxPacingRate && !p.MayAdapt(f):
				fail("the rule's rate_limit would hide the rate limit of a policer, by which "+key+" is adapted", "remove one of them")
			case !p.MayAdapt(f):
				fail("the rule sets syn_count, which "+key+" would have to raise", "remove one of them")
			case why != "":
				fail(key+" can never take effect: it "+why, "remove it, or widen the match")
			}
			fields = append(fields, f)
		}
	}
	if p.Learn == nil {
		fail("the rule learns nothing, so nothing is known of its paths", "add learn: {}, or remove adapt")
	}
	return fields
}

// checkAction refuses actions that exclude each other, and a rule without any.
func (d *decoder) checkAction(r *fileRule, p *policy.Rule) {
	if p.Leave {
		for _, other := range []any{&r.Set, &r.Learn, &r.Adapt, &r.Limit, &r.OnRTO, &r.Watch, &r.Rollout} {
			if at, here := d.at[other]; here {
				d.Fail(at, "the rule says leave: true as well", "remove one of them")
			}
		}
		return
	}
	if r.Rollout != nil && r.Set == nil && r.Learn == nil && !d.broken[r] {
		d.Fail(d.at[&r.Rollout], "the rule gives nothing that could be rolled out", "add set or learn, or remove it")
	}
	if p.CC != (tcp.CC{}) && p.Learn != nil {
		d.Fail(d.at[ccAt{r.Set}], "a fixed congestion control leaves nothing to learn", "remove cc from set, or remove learn")
	}
	if r.Set == nil && r.Learn == nil && r.Watch == nil && r.Limit == nil && r.OnRTO == nil && !d.broken[r] {
		d.Fail(d.at[r], "the rule does nothing", "add set, learn, rate_limit, on_rto, watch, or leave: true")
	}
}

// checkMatch refuses a match that nothing satisfies, and fields that have no
// effect on what it matches.
func (d *decoder) checkMatch(r *fileRule, p *policy.Rule) {
	if d.broken[&r.Match] {
		return
	}
	if r.Match.Same != nil && p.Match.Same == (policy.Same{}) {
		d.Fail(d.at[&r.Match.Same], "no family is named", "write such as {ipv6: 44, ipv4: 16}")
		return
	}
	if why := p.Match.Impossible(); why != "" {
		d.Fail(d.at[&r.Match], "the rule can never match: "+why, "correct the match, or remove the rule")
		return
	}
	for _, f := range p.Set.Fields() {
		if why := p.Match.CannotApply(f); why != "" {
			d.Fail(d.at[fieldAt{r.Set, f}], "the field can never take effect: it "+why,
				"remove it, or widen the match")
		}
	}
}

// checkSame bounds the different same-prefix comparisons of all rules.
func (d *decoder) checkSame(raw *fileRules) {
	seen := make(map[policy.Same]bool) // one family each
	for i := range raw.Rules {
		s := raw.Rules[i].Match.Same
		if s == nil {
			continue
		}
		for _, one := range []policy.Same{{IPv6: s.IPv6}, {IPv4: s.IPv4}} {
			if one != (policy.Same{}) {
				seen[one] = true
			}
		}
		if len(seen) > class.MaxSamePrefix {
			d.Fail(d.at[&raw.Rules[i].Match.Same],
				fmt.Sprintf("more than %d different prefix lengths", class.MaxSamePrefix), "use one of those above")
			return
		}
	}
}

// checkRoom bounds the prefixes and ports of all rules to what the datapath's tables hold. It
// counts the most that the rules can need: two rows for all other addresses, and two cuts for
// each range of ports.
func (d *decoder) checkRoom(raw *fileRules, rules []policy.Rule, builtin int) {
	prefixes := [2]map[netip.Prefix]bool{{}, {}}
	cuts := [2]map[int]bool{{0: true}, {0: true}}
	for i := range rules {
		m := &rules[i].Match
		for dim, list := range [][]netip.Prefix{m.Remote, m.Local} {
			for _, p := range list {
				prefixes[dim][p] = true
			}
		}
		for dim, list := range [][]policy.PortRange{m.RemotePort, m.LocalPort} {
			for _, p := range list {
				cuts[dim][int(p.First)], cuts[dim][int(p.Last)+1] = true, true
			}
		}
		if i < builtin {
			continue
		}
		at := d.at[&raw.Rules[i-builtin].Match]
		for dim, side := range []string{"remote", "local"} {
			if len(prefixes[dim])+2 > class.MaxPrefixes {
				d.Fail(at, fmt.Sprintf("with this rule there are more than %d %s prefixes", class.MaxPrefixes-2, side), "join neighbouring prefixes")
				return
			}
			if len(cuts[dim]) > class.MaxPortRanges {
				d.Fail(at, fmt.Sprintf("with this rule there are more than %d %s port ranges", class.MaxPortRanges/2, side), "join neighbouring ports to ranges")
				return
			}
		}
	}
}

// checkShadows refuses rules that can never match because earlier rules match all of their
// connections. Rules with other mistakes are skipped, because their intention is unknown.
func (d *decoder) checkShadows(raw *fileRules, rules []policy.Rule, builtin int) {
	var sound []policy.Rule
	var index []int // into rules
	for i := range rules {
		if i < builtin || !d.broken[&raw.Rules[i-builtin]] {
			sound = append(sound, rules[i])
			index = append(index, i)
		}
	}
	for _, s := range policy.Shadows(sound) {
		n := index[s.Rule] - builtin
		if n < 0 {
			continue
		}
		r := &raw.Rules[n]
		var by []string
		fix := "move it before them, narrow them, or remove it"
		for _, b := range s.By {
			if index[b] < builtin {
				by = append(by, fmt.Sprintf("built-in rule %q", sound[b].Name))
				fix = "remove it, or write builtin_rules: false and your own rules"
				continue
			}
			by = append(by, fmt.Sprintf("rule %q in line %d", sound[b].Name, d.at[&raw.Rules[index[b]-builtin]].Line))
		}
		if len(by) == 1 {
			fix = strings.ReplaceAll(fix, "them", "it")
			fix = strings.Replace(fix, "move it before it, narrow it", "move it before that one, narrow that one", 1)
		}
		d.Fail(d.at[r],
			fmt.Sprintf("rule %q can never match: every connection that it matches is already matched by %s", r.Name, strings.Join(by, " and ")), fix)
	}
}

func fieldNames() []string {
	names := []string{"cc"}
	for f := range tcp.Fields {
		names = append(names, tcp.Fields[f].Name)
	}
	return names
}
