package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/metrics"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// pods are the pods of this host, by the records of the CNI plugin (design note 18).
type pods struct {
	records podrecord.Dir
	own     uint64 // cookie of the daemon's network namespace, which is no pod's
	view    atomic.Pointer[podView]

	mu      sync.Mutex // one reading at a time, until its rules are in force
	syncs   sharedWork[api.PodSync]
	checked map[podPlace]podCheck
	found   foundPods
	// masqueraded are the networks of pods that the CNI plugin masquerades, by the latest reading.
	masqueraded map[string]*masquerading
	rewrites    map[string]rewrite // of their rules
	refused     []api.RefusedPod   // by the latest reading
	failed      string             // why the latest reading failed
}

// podView is what is known of the pods of one time. All but the counters is immutable.
type podView struct {
	set      *pod.Set
	names    map[uint64]string
	ended    map[uint64]*atomic.Uint64 // connections that ended
	controls map[uint64]podControl     // of those whose annotation fixes one
	unknown  map[uint64]string         // what is wrong with the names of annotations and profiles
	refused  []api.RefusedPod
	failed   string
}

// podControl is the result of reading policy.ControlAnnotation.
type podControl struct {
	cc      tcp.CC // zero: not followed
	warning string // why not
}

// podPlace is where a record says that a pod is.
type podPlace struct {
	path   string
	cookie uint64
}

// podCheck is when a path was last seen to lead to the network namespace of the cookie, and the file that
// it referred to.
type podCheck struct {
	dev, ino uint64
	at       time.Time
}

// recheckPods is how often a path is entered again although it refers to the same file as before:
// the number of a file may be used again once the namespace is gone.
const recheckPods = time.Minute

// openPods reads the records before the first rules are written.
func (d *Daemon) openPods(cfg *config.Config) error {
	own, err := netns.Cookie("")
	if err != nil {
		return err
	}
	d.pods.records, d.pods.own, d.rules.base = podrecord.Dir(cfg.Pods.Dir), own, cfg.Rules
	d.pods.mu.Lock()
	defer d.pods.mu.Unlock()
	d.readPods(d.controls.usable)
	return nil
}

// SyncPods implements api.Backend. Plugins of pods that start together share a reading.
func (d *Daemon) SyncPods(context.Context) (api.PodSync, error) {
	return d.pods.syncs.do(&d.pods.mu, d.syncPods)
}

// syncPods reads the records and puts what follows from them into force. The caller has pods.mu.
func (d *Daemon) syncPods() (api.PodSync, error) {
	d.readPods(d.controls.usable)
	d.followPodDevices()
	v := d.pods.view.Load()
	if err := d.followPods(); err != nil {
		return api.PodSync{}, err
	}
	if v.failed != "" {
		return api.PodSync{}, api.Unavailable("%s", v.failed)
	}
	return api.PodSync{Pods: v.set.Len(), Refused: v.refused}, nil
}

// lookUpControls lists the congestion controls that connections may get.
type lookUpControls func() ([]tcp.CC, error)

// readPods reads the records, and drops those of pods that are gone. The caller has pods.mu.
func (d *Daemon) readPods(lookUp lookUpControls) {
	p := &d.pods
	read := func(v *podView) {
		v.controls, v.unknown = podControls(v.set, lookUp), d.rules.unknownNames(v.set)
	}
	records, bad, err := p.records.List()
	if err != nil { // the previous pods stay
		if p.failed != err.Error() {
			d.log.Warn("records of pods not read, the previous pods stay in force", "error", err)
		}
		p.failed = err.Error()
		p.publish(p.now(), read)
		return
	}
	p.failed = ""
	now := time.Now()
	var here []pod.Pod
	var refused []api.RefusedPod
	for _, b := range bad {
		refused = append(refused, api.RefusedPod{Record: b.File, Why: b.Why.Error()})
	}
	checked := make(map[podPlace]podCheck, len(records))
	for i := range records {
		r := &records[i]
		gone, err := p.check(&r.Pod, now, checked)
		if err == nil {
			d.podAPI.annotate(&r.Pod)
			here = append(here, r.Pod)
			continue
		}
		bad := api.RefusedPod{Record: r.File, Pod: r.FullName(), Why: err.Error()}
		switch {
		case gone && r.Made:
			bad.Why += "; tcpilot-cni removes the record when the container runtime ends the pod (DEL), or lists the existing pods (GC); if the runtime does neither: tcpilot cni gc"
		case gone:
			if err := p.records.Remove(r); err != nil {
				bad.Why += "; " + err.Error()
			} else {
				bad.Removed = true
			}
		}
		refused = append(refused, bad)
	}
	p.masqueraded = masqueradedOf(here)
	here = append(here, d.withoutRecord(here, now, checked)...)
	p.checked = checked
	d.logRefused(refused)
	p.refused = refused
	set := pod.NewSet(here)
	before := p.view.Load()
	added, removed := set.Since(p.now())
	p.publish(set, read)
	d.logPods(before, added, removed)
	d.podAPI.warn(d.pods.view.Load())
}

// check returns an error unless the path of a pod leads to its network namespace. gone says that
// the pod certainly does not exist.
func (p *pods) check(r *pod.Pod, now time.Time, checked map[podPlace]podCheck) (gone bool, err error) {
	if r.Cookie == p.own {
		return false, errors.New("its network namespace is the daemon's own")
	}
	at := podPlace{r.NetNS, r.Cookie}
	before, known := p.checked[at]
	var st unix.Stat_t
	if err := unix.Stat(r.NetNS, &st); err == nil && known && before.dev == st.Dev && before.ino == st.Ino && now.Sub(before.at) < recheckPods {
		checked[at] = before
		return false, nil
	}
	cookie, err := netns.Cookie(r.NetNS)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// If the directory does not exist either, this process may see another file system than the
		// container runtime does.
		_, err := os.Stat(filepath.Dir(r.NetNS))
		return err == nil, fmt.Errorf("its network namespace %s does not exist", r.NetNS)
	case err != nil && known: // such as too many open files: it is tried again at the next reading
		checked[at] = before
		return false, nil
	case err != nil:
		return false, err
	case cookie != r.Cookie:
		return true, fmt.Errorf("%s is another network namespace (cookie %d, not %d)", r.NetNS, cookie, r.Cookie)
	}
	checked[at] = podCheck{st.Dev, st.Ino, now}
	return false, nil
}

// warnings say which annotations of a pod are not followed.
func (v *podView) warnings(p *pod.Pod) []string {
	_, wrong := p.Limits()
	return append(wrong, v.unfollowed(p)...)
}

// unfollowed are the warnings about annotations of tcpilot's own.
func (v *podView) unfollowed(p *pod.Pod) (list []string) {
	for _, why := range []string{v.controls[p.Cookie].warning, v.unknown[p.Cookie], wrongSwitch(p, routingAnnotation), wrongSwitch(p, bigTCPAnnotation)} {
		if why != "" {
			list = append(list, why)
		}
	}
	return list
}

// wrongSwitch says what is wrong with an annotation that should be on or off; empty if nothing is. With a wrong
// value, the pod does not have what the annotation is about.
func wrongSwitch(p *pod.Pod, annotation string) string {
	value, asks := p.Annotations[annotation]
	if !asks || value == "on" || value == "off" {
		return ""
	}
	return fmt.Sprintf("annotation %s: %.40q is neither on nor off", annotation, value)
}

// now is the pods of the latest reading.
func (p *pods) now() *pod.Set {
	if v := p.view.Load(); v != nil {
		return v.set
	}
	return nil
}

// publish makes a view of set; read fills in what annotations ask for. Pods that stay keep their counters.
func (p *pods) publish(set *pod.Set, read func(*podView)) {
	v := &podView{set: set, names: make(map[uint64]string, set.Len()), ended: make(map[uint64]*atomic.Uint64, set.Len()),
		refused: p.refused, failed: p.failed}
	read(v)
	before := p.view.Load()
	for _, one := range set.All() {
		v.names[one.Cookie] = one.FullName()
		if before != nil && before.ended[one.Cookie] != nil {
			v.ended[one.Cookie] = before.ended[one.Cookie]
		} else {
			v.ended[one.Cookie] = new(atomic.Uint64)
		}
	}
	p.view.Store(v)
}

// observe counts the ends of the connections of pods.
func (p *pods) observe(s *tcp.Sample) {
	v := p.view.Load()
	if v == nil || len(v.ended) == 0 || s.Kind != tcp.KindClose {
		return
	}
	if n := v.ended[s.NetNS]; n != nil {
		n.Add(uint64(max(1, s.StandsFor)))
	}
}

// podControls reads policy.ControlAnnotation of each pod that has it.
func podControls(set *pod.Set, lookUp lookUpControls) map[uint64]podControl {
	found := map[uint64]podControl{}
	var usable []tcp.CC
	var err error
	for _, p := range set.All() {
		value, asks := p.Annotations[policy.ControlAnnotation]
		if !asks {
			continue
		}
		if usable == nil && err == nil {
			usable, err = lookUp()
		}
		cc, wrong := config.ParseCC(value)
		c := podControl{cc: cc}
		switch {
		case wrong != nil:
			c = podControl{warning: fmt.Sprintf("annotation %s: %.40q cannot be a congestion control", policy.ControlAnnotation, value)}
		case err != nil:
			c = podControl{warning: fmt.Sprintf("annotation %s: %v", policy.ControlAnnotation, err)}
		case !slices.Contains(usable, cc):
			c = podControl{warning: fmt.Sprintf("annotation %s: %s is not available here: it needs its kernel module, or 'tcpilot cc load'", policy.ControlAnnotation, value)}
		}
		found[p.Cookie] = c
	}
	return found
}

// wantedControls are the congestion controls that annotations fix, in the order of their names.
func wantedControls(controls map[uint64]podControl) (ccs []tcp.CC) {
	for _, c := range controls {
		if c.cc != (tcp.CC{}) && !slices.Contains(ccs, c.cc) {
			ccs = append(ccs, c.cc)
		}
	}
	slices.SortFunc(ccs, func(a, b tcp.CC) int { return strings.Compare(a.String(), b.String()) })
	return ccs
}

// logRefused logs the records that the reading before did not refuse for the same reason.
func (d *Daemon) logRefused(refused []api.RefusedPod) {
	for _, r := range refused {
		if !slices.Contains(d.pods.refused, r) {
			d.log.Warn("record of a pod not used", "record", r.Record, "pod", r.Pod, "why", r.Why, "removed", r.Removed)
		}
	}
}

func (d *Daemon) logPods(before *podView, added, removed []*pod.Pod) {
	v := d.pods.view.Load()
	for _, p := range removed {
		if v.set.ByCookie(p.Cookie) == nil {
			d.log.Info("pod removed", "pod", p.FullName(), "netns", p.Cookie, "rules", d.rules.ofPod(p))
		}
	}
	for _, p := range added {
		if _, wrong := p.Limits(); wrong != nil {
			d.log.Warn("bandwidth of a pod not limited", "pod", p.FullName(), "why", strings.Join(wrong, "; "))
		}
	}
	if before == nil && len(added) > 0 {
		d.log.Info("pods read", "pods", len(added))
		added = nil
	}
	for _, p := range added {
		message := "pod added"
		if before.set.ByCookie(p.Cookie) != nil {
			message = "pod changed"
		}
		d.log.Info(message, "pod", p.FullName(), "netns", p.Cookie, "rules", d.rules.ofPod(p), "cc", v.controls[p.Cookie].cc)
	}
	for _, p := range v.set.All() {
		for _, why := range v.unfollowed(p) {
			if before == nil || !slices.Contains(before.unfollowed(p), why) {
				d.log.Warn("annotation of a pod not followed", "pod", p.FullName(), "why", why)
			}
		}
	}
}

// Pods implements api.Backend.
func (d *Daemon) Pods(context.Context) (api.PodList, error) {
	v := d.pods.view.Load()
	l := api.PodList{At: time.Now(), Pods: make([]api.Pod, 0, v.set.Len()), Packets: d.packetCounts()}
	devices, limits := d.podDevices.view(), d.bandwidths()
	noRoom := d.rules.noRoom()
	for _, p := range v.set.All() {
		c := v.controls[p.Cookie]
		if c.cc != (tcp.CC{}) && noRoom != nil {
			c = podControl{warning: fmt.Sprintf("annotation %s: %v", policy.ControlAnnotation, noRoom)}
		}
		wrong := devices.bandwidthWarnings(p, limits[p.Cookie])
		if c.warning != "" {
			wrong = append(wrong, c.warning)
		}
		if why := v.unknown[p.Cookie]; why != "" {
			wrong = append(wrong, why)
		}
		routing, big := devices.podRouting(p), devices.podBigTCP(p)
		if why := wrongSwitch(p, routingAnnotation); why != "" && routing == nil { // otherwise routing has it
			wrong = append(wrong, why)
		}
		if why := wrongSwitch(p, bigTCPAnnotation); why != "" && big == nil {
			wrong = append(wrong, why)
		}
		l.Pods = append(l.Pods, api.Pod{
			Pod: v.names[p.Cookie], Namespace: p.Namespace, Name: p.Name, NetNS: p.Cookie, Container: p.Container, Cgroup: p.Cgroup,
			Recorded: p.Interface != "", Annotations: d.rules.shownAnnotations(p), Rules: d.rules.ofPod(p), Control: c.cc.String(), Warning: strings.Join(wrong, "; "), Since: p.Added,
			Connections: v.ended[p.Cookie].Load(), Routing: routing, BigTCP: big,
		})
		devices.showBandwidth(p, limits[p.Cookie], &l.Pods[len(l.Pods)-1])
	}
	for _, r := range v.refused {
		if !r.Removed {
			l.Refused = append(l.Refused, r)
		}
	}
	return l, nil
}

// PodName implements api.Backend.
func (d *Daemon) PodName(netns uint64) string { return d.pods.view.Load().names[netns] }

// podStatus is what the status says of pods; nil if there is nothing to say.
func (d *Daemon) podStatus() *api.PodStatus {
	l, _ := d.Pods(context.Background())
	s := l.Status(d.pods.view.Load().failed)
	r := pluginRemoval(d.pods.records)
	if r == nil {
		return s
	}
	if s == nil {
		s = new(api.PodStatus)
	}
	s.Removal = r
	return s
}

// pluginRemoval is the removal of the CNI plugin that waits for pods; nil if there is none, or if the directory cannot be read, which
// its list of pods reports.
func pluginRemoval(records podrecord.Dir) *api.PluginRemoval {
	r, err := records.Removal()
	if err != nil || r == nil {
		return nil
	}
	waits, err := records.Waits()
	if err != nil {
		return nil
	}
	return &api.PluginRemoval{Since: r.Since, Pods: append([]string{}, waits.Pods...), Sandboxes: waits.Stopped}
}

func (d *Daemon) podCounts() (list []metrics.PodCount) {
	v := d.pods.view.Load()
	for _, p := range v.set.All() {
		list = append(list, metrics.PodCount{Pod: v.names[p.Cookie], Connections: v.ended[p.Cookie].Load()})
	}
	return list
}
