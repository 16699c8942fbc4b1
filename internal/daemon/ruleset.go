package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// ruleSet is the configured rules, and the variants that are in force for pods. One writer at a time
// looks names up and writes rules, so that older ids never replace newer ones.
type ruleSet struct {
	writing sync.Mutex

	mu      sync.Mutex    // protects the rest; to have both, lock writing before it
	base    []policy.Rule // of the configuration
	wanted  []tcp.CC      // variants in force, unless tooMany
	tooMany error         // why there are none
}

// putRules writes the rules of a configuration by write.
func (d *Daemon) putRules(base []policy.Rule, write func([]policy.Rule) error) error {
	d.rules.writing.Lock()
	defer d.rules.writing.Unlock()
	// Not those of the last reading: the configuration may ask for other congestion controls now.
	controls := podControls(d.pods.now(), d.controls.usable)
	return d.rules.write(base, wantedControls(controls), write)
}

// write writes rules, with variants if there is room for them, and notes them once they are in force.
// The caller has r.writing.
func (r *ruleSet) write(base []policy.Rule, wanted []tcp.CC, write func([]policy.Rule) error) error {
	rules, tooMany := policy.WithPodControls(base, wanted)
	if tooMany != nil {
		rules = base
	}
	if err := write(rules); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base, r.wanted, r.tooMany = base, wanted, tooMany
	return nil
}

// noRoom says why no annotation of a pod is followed; nil if they are.
func (r *ruleSet) noRoom() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tooMany
}

// ofPod are the configured rules with a condition on pods that p meets, in the order of matching.
func (r *ruleSet) ofPod(p *pod.Pod) []string {
	r.mu.Lock()
	base := r.base
	r.mu.Unlock()
	names := []string{}
	for i := range base {
		if m := base[i].Match.Pod; m != nil && m.Match(p) {
			names = append(names, base[i].Name)
		}
	}
	return names
}

// unknownNames are what is wrong with the profiles that pods name, and with annotations of tcpilot's prefix.
func (r *ruleSet) unknownNames(set *pod.Set) map[uint64]string {
	r.mu.Lock()
	base := r.base
	r.mu.Unlock()
	wrong := map[uint64]string{}
	for _, p := range set.All() {
		var list []string
		if why := policy.UnknownProfile(base, p); why != "" {
			list = append(list, why)
		}
		if list = append(list, unknownAnnotations(base, p)...); len(list) > 0 {
			wrong[p.Cookie] = strings.Join(list, "; ")
		}
	}
	return wrong
}

// annotationPrefix begins the names of tcpilot's annotations.
const annotationPrefix = "tcpilot.io/"

// annotations are tcpilot's own. tcpilot-cni reads that of the device (internal/cni/mainconfig.go).
var annotations = []string{policy.ControlAnnotation, "tcpilot.io/profile", routingAnnotation, bigTCPAnnotation, "tcpilot.io/device"}

// unknownAnnotations are what is wrong with annotations of p that begin as tcpilot's own do, and that neither
// tcpilot nor a rule knows.
func unknownAnnotations(rules []policy.Rule, p *pod.Pod) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(p.Annotations)) {
		if !strings.HasPrefix(name, annotationPrefix) || slices.Contains(annotations, name) || namedBy(rules, name) {
			continue
		}
		why := fmt.Sprintf("annotation %.63s is unknown", name)
		if near := yamlfile.Nearest(name, annotations); near != "" {
			why += ": did you mean " + near + "?"
		}
		list = append(list, why)
	}
	return list
}

// namedBy reports whether a rule has a condition on an annotation.
func namedBy(rules []policy.Rule, annotation string) bool {
	return slices.ContainsFunc(rules, func(rule policy.Rule) bool {
		if rule.Match.Pod == nil {
			return false
		}
		_, named := rule.Match.Pod.Annotations[annotation]
		return named
	})
}

// shownAnnotations are the annotations of p that tcpilot or a rule uses. Others may be confidential,
// and the API does not show them.
func (r *ruleSet) shownAnnotations(p *pod.Pod) map[string]string {
	r.mu.Lock()
	base := r.base
	r.mu.Unlock()
	shown := map[string]string{}
	for name, value := range p.Annotations {
		if strings.HasPrefix(name, annotationPrefix) || namedBy(base, name) {
			shown[name] = value
		}
	}
	return shown
}

// followPods puts the rules and rate limits for the present pods into force. It writes nothing if they
// are in force already.
func (d *Daemon) followPods() error {
	if err := d.followPodRules(); err != nil {
		return err
	}
	return d.putLimits()
}

func (d *Daemon) followPodRules() error {
	wanted := wantedControls(d.pods.view.Load().controls)
	d.rules.writing.Lock()
	defer d.rules.writing.Unlock()
	d.rules.mu.Lock()
	base, before := d.rules.base, d.rules.wanted
	d.rules.mu.Unlock()
	if slices.Equal(before, wanted) {
		return d.recompile()
	}
	err := d.rules.write(base, wanted, func(rules []policy.Rule) error {
		return d.engine.SetVariants(rules, d.resolver(), time.Now().UnixNano())
	})
	if err == nil && d.rules.noRoom() != nil {
		d.log.Warn("annotations of pods not followed", "why", d.rules.noRoom())
	}
	return err
}

// recompile looks up again what rules depend on. The caller has rules.writing.
func (d *Daemon) recompile() error { return d.engine.Recompile(d.resolver()) }

// resolver is the function of that name, with the present pods.
func (d *Daemon) resolver() policy.Resolver {
	r := resolver()
	r.Pods = func(m *pod.Match) []uint64 { return d.pods.now().Cookies(m) }
	return r
}

// ruleNamed is the rule of that name; nil if there is none.
func ruleNamed(rules []policy.Rule, name string) *policy.Rule {
	if i := slices.IndexFunc(rules, func(r policy.Rule) bool { return r.Name == name }); i >= 0 {
		return &rules[i]
	}
	return nil
}
