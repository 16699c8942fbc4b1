package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/path"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// fileRules is the part of the file that becomes Config.Rules.
type fileRules struct {
	Rules []fileRule `key:"rules"`
}

// fileRule is a rule as written in the file.
type fileRule struct {
	Name    string     `key:"name" is:"name" doc:"name of the rule, unlike every other's, and neither none nor removed; it identifies the rule across reloads, which keep what was learned for it"`
	Match   fileMatch  `key:"match" doc:"conditions, all of which have to hold; without any the rule matches every connection"`
	Leave   *bool      `key:"leave" default:"false" doc:"true: touch nothing and report nothing (the limit of a pod's bandwidth holds all the same); excludes set, learn, adapt, rate_limit, on_rto, watch and rollout"`
	Set     *setValues `key:"set" doc:"fixed values, see Fields"`
	Learn   *fileLearn `key:"learn" doc:"learn a congestion control per path; {} for the defaults"`
	Adapt   []string   `key:"adapt" default:"default" oneof:"default off auto syn_rto synack_rto init_cwnd resume_cwnd init_rwnd max_pacing_rate rto_min delack_max cwnd_clamp peer_option" doc:"fields that are computed for each path from its metrics, see adapt.md; default is syn_rto, synack_rto, init_cwnd, resume_cwnd and init_rwnd, auto all except rto_min, delack_max, cwnd_clamp and peer_option; only with learn"`
	Bounds  fileBounds `key:"adapt_bounds" doc:"bounds of the values that adapt computes"`
	Limit   *fileLimit `key:"rate_limit" doc:"bounds of the rate at which the rule's connections send, payload with retransmissions, see rate-limits.md; also for connections that learn, hold_out and rollout leave at kernel defaults"`
	Rollout *float64   `key:"rollout" default:"100%" min:"0.001" max:"1" doc:"share of the rule's connections that set and learn apply to; the others are in the hold-out, so that the two can be compared"`
	OnRTO   *fileOnRTO `key:"on_rto" doc:"what a running connection gets after repeated retransmission timeouts, see learning.md"`
	Watch   *fileWatch `key:"watch" doc:"count events of a share of the connections"`
}

type fileMatch struct {
	Remote     []netip.Prefix     `key:"remote" doc:"the remote address is in any of these prefixes; IPv4 prefixes match v4-mapped addresses too"`
	Local      []netip.Prefix     `key:"local" doc:"the same for the local address"`
	RemotePort []policy.PortRange `key:"remote_port" doc:"the remote port is one of these, or in one of these ranges, such as [443, 8000-8100]"`
	LocalPort  []policy.PortRange `key:"local_port" doc:"the same for the local port"`
	Cgroup     []string           `key:"cgroup" is:"cgroup" doc:"the socket belongs to any of these cgroups or to one below; paths from the root of the cgroup2 hierarchy, or patterns of them such as /kubepods.slice/*; one that does not exist yet is waited for"`
	NetNS      []string           `key:"netns" is:"netns" doc:"the socket belongs to any of these network namespaces: a name in /run/netns, an absolute path, or a cookie; one that does not exist yet is waited for"`
	Pod        *filePod           `key:"pod" doc:"the socket belongs to any of these pods, as the CNI plugin tcpilot-cni recorded them; {} for any pod; together with netns and cgroup all have to hold"`
	Direction  policy.Direction   `key:"direction" default:"either" oneof:"outgoing incoming" doc:"outgoing: this host called connect; incoming: it accepted"`
	Same       *fileSame          `key:"same_prefix" doc:"local and remote address begin with the same bits, as in one datacentre; a family that is not named does not match"`
}

type filePod struct {
	Namespace  []string `key:"namespace" is:"podglob" doc:"the pod's namespace is one of these patterns, in which * is any text, ? any character, and [a-z] one of these"`
	Name       []string `key:"name" is:"podglob" doc:"the same for its name"`
	Annotation globs    `key:"annotation" doc:"the pod has all of these annotations with such a value, such as {tcpilot.io/profile: bulk}"`
}

// globs are patterns of values, by name.
type globs map[string]string

type fileSame struct {
	IPv6 int `key:"ipv6" min:"1" max:"128" doc:"bits that IPv6 addresses have to share"`
	IPv4 int `key:"ipv4" min:"1" max:"32" doc:"bits that IPv4 addresses have to share"`
}

type fileLearn struct {
	Arms          armList         `key:"arms" default:"auto" doc:"congestion controls to choose among, at most 8; auto is what the kernel has of Linux's own, and those of tcpilot's own that are loaded, such as tcpilot_bbr3 instead of bbr; congestion-controls.md lists them"`
	Objective     learn.Objective `key:"objective" default:"throughput" oneof:"throughput latency fct realtime" doc:"what the connections want: throughput (goodput while the network is the limit), latency (round-trip time above the least, and retransmits), fct (completion time of connections of one size), realtime (latency and its variation); latency and realtime also have defaults of other keys, see learning.md"`
	HoldOut       *float64        `key:"hold_out" default:"learning.hold_out" min:"0" max:"0.5" doc:"share of connections left at kernel defaults, the rule's fixed values included; more on a new path, and where the default looks better, see learning.md"`
	SwitchRunning bool            `key:"switch" default:"false" doc:"running connections get a better congestion control too, if theirs is believed to be less than half as fast on their path; those whose application chose one are left alone"`
	Scope         string          `key:"scope" default:"shared" oneof:"shared netns" doc:"shared: what is learned is for all network namespaces; netns: for each one separately"`
}

type fileBounds struct {
	InitCwnd  int           `key:"init_cwnd" default:"64" min:"11" max:"1000" doc:"greatest initial window, packets"`
	Resume    int           `key:"resume_cwnd" default:"1000" min:"11" max:"1000" doc:"greatest congestion window after the first round trip, packets"`
	InitRwnd  int           `key:"init_rwnd" default:"718" min:"46" max:"4096" doc:"greatest initial receive window, packets of 1460 bytes"`
	SynRTO    time.Duration `key:"syn_rto" default:"125ms" min:"125ms" max:"500ms" doc:"least timeout of a SYN"`
	SynAckRTO time.Duration `key:"synack_rto" default:"250ms" min:"250ms" max:"500ms" doc:"least timeout of a SYN-ACK"`
	RTOMin    time.Duration `key:"rto_min" default:"50ms" min:"10ms" max:"100ms" doc:"least RTO_MIN"`
	DelackMax time.Duration `key:"delack_max" default:"8ms" min:"4ms" max:"16ms" doc:"least DELACK_MAX"`
	Pacing    rate          `key:"max_pacing_rate" default:"1Mbit/s" min:"100kbit/s" max:"34Gbit/s" doc:"least sum of the pacing rates of a path's connections: lower rate limits are ignored"`
	CwndClamp int           `key:"cwnd_clamp" default:"4" min:"2" max:"1000" doc:"least clamp of the congestion window of a connection, packets"`
}

type fileLimit struct {
	Total      rate `key:"total" min:"100kbit/s" max:"1Tbit/s" doc:"of all connections of the rule together, divided among them by what they need"`
	Connection rate `key:"connection" min:"10kbit/s" max:"34Gbit/s" doc:"of each connection"`
}

// rate is a number of bytes per second.
type rate uint64

type fileWatch struct {
	Events []string `key:"events" oneof:"rto retransmit state" doc:"retransmission timeouts, retransmitted segments, changes of state"`
	Share  *float64 `key:"share" default:"1%" min:"0.0001" max:"1" doc:"share of connections to watch; each call costs about 100 ns"`
}

type fileOnRTO struct {
	CC    tcp.CC   `key:"cc" doc:"congestion control that the connection gets, unless its application chose one; not one that needs ECN"`
	After int      `key:"after" default:"3" min:"1" max:"100" doc:"number of timeouts after which the congestion control is changed, counted from the beginning of the connection, with those of the handshake; before Linux 6.7 only timeouts in succession count"`
	Share *float64 `key:"share" default:"100%" min:"0.0001" max:"1" doc:"share of the connections"`
}

// setValues are the entries of set: one for each of tcp.Fields, and cc.
type setValues struct {
	params  tcp.Params
	cc      tcp.CC
	written map[string]string // fields as written in the file
}

// armList is auto, which is nil, or a list of congestion controls.
type armList []tcp.CC

// ruleKeyElsewhere says where a misplaced key at a rule's top level belongs.
func ruleKeyElsewhere(key string) string {
	if _, ok := tcp.FieldByName(key); ok || key == "cc" {
		return fmt.Sprintf("put it under set: set: {%s: ...}", key)
	}
	for _, section := range []struct {
		name string
		keys reflect.Type
	}{{"match", reflect.TypeFor[fileMatch]()}, {"learn", reflect.TypeFor[fileLearn]()}, {"watch", reflect.TypeFor[fileWatch]()}, {"rate_limit", reflect.TypeFor[fileLimit]()}} {
		if slices.ContainsFunc(reflect.VisibleFields(section.keys), func(f reflect.StructField) bool { return f.Tag.Get("key") == key }) {
			return fmt.Sprintf("put it under %s: %s: {%s: ...}", section.name, section.name, key)
		}
	}
	return ""
}

// set decodes the entries of set.
func (d *decoder) set(n *yamlfile.Node, s *setValues) {
	if d.Want(n, yamlfile.Mapping) && len(n.Entries) == 0 {
		d.Fail(n.Place, "no field is named", "name one, or remove the key")
	}
	for _, e := range n.Entries {
		d.setOne(e, s)
	}
}

func (d *decoder) setOne(e *yamlfile.Entry, s *setValues) {
	f, known := tcp.FieldByName(e.Key)
	at := yamlfile.Place{Line: e.At.Line, Col: e.At.Col, Path: e.Value.Path}
	switch {
	case !known && e.Key != "cc":
		d.Unknown(e.At, "field", e.Key, fieldNames(), "see docs/config.md for the fields")
		return
	case e.Value.Kind == yamlfile.Null:
		d.Fail(at, "the field has no value", "write one, or remove the field to leave it to the kernel")
		return
	}
	text, ok := d.text(e.Value)
	if !ok {
		return
	}
	var err error
	if known {
		var v uint64
		if v, err = parseField(f, text); err == nil {
			s.params.Set(f, v)
			if s.written == nil {
				s.written = make(map[string]string)
			}
			s.written[e.Key] = text
			d.at[fieldAt{s, f}] = at
		}
	} else {
		s.cc, err = ParseCC(text)
		d.at[ccAt{s}] = at
	}
	if err != nil {
		d.Wrong(e.Value, err)
	}
}

// fieldAt finds the position of one field of set in decoder.at.
type fieldAt struct {
	set   *setValues
	field tcp.Field
}

// ccAt finds the position of set's cc in decoder.at.
type ccAt struct{ set *setValues }

// globs decodes patterns of values, by name.
func (d *decoder) globs(n *yamlfile.Node, g *globs) {
	if d.Want(n, yamlfile.Mapping) && len(n.Entries) == 0 {
		d.Fail(n.Place, "no name is given", "write such as {tcpilot.io/profile: bulk}, or remove the key")
	}
	*g = make(globs, len(n.Entries))
	for _, e := range n.Entries {
		text, ok := d.text(e.Value)
		if !ok {
			continue
		}
		if err := checkGlob(text); err != nil {
			d.Wrong(e.Value, err)
		}
		(*g)[e.Key] = text
	}
}

// arms decodes the value of arms.
func (d *decoder) arms(n *yamlfile.Node, list *armList) {
	if n.Kind == yamlfile.Text && n.Text == "auto" {
		return
	}
	nodes, ok := d.controlNames(n, (*[]tcp.CC)(list))
	if !ok {
		return
	}
	if len(nodes) > path.MaxArms {
		d.Fail(nodes[path.MaxArms].Place, fmt.Sprintf("%d arms", len(nodes)), fmt.Sprintf("name at most %d", path.MaxArms))
	}
	if slices.Contains(*list, autoArms) {
		d.Fail(n.Place, "auto cannot be combined with names", "write arms: auto, or names only")
	}
}

// controlNames decodes a list of congestion controls, each of which may be in it once.
func (d *decoder) controlNames(n *yamlfile.Node, list *[]tcp.CC) (nodes []*yamlfile.Node, ok bool) {
	before := d.Failed
	d.slice(n, reflect.ValueOf(list).Elem(), "")
	if d.Failed > before {
		return nil, false
	}
	nodes = d.Values(n)
	for i, cc := range *list {
		if slices.Contains((*list)[:i], cc) {
			d.Fail(nodes[i].Place, fmt.Sprintf("%s is in the list twice", cc), "remove one of them")
		}
	}
	return nodes, true
}

var autoArms, _ = tcp.ParseCC("auto")
