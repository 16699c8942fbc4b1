package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/cc"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/kernelcc"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"golang.org/x/sys/unix"
)

// controls are the congestion controls in BPF: tcpilot's own that the configuration
// wants, and users' own. A control is loaded before the engine offers it, and unloaded
// after the last policy that names it is gone.
type controls struct {
	*cc.Catalogue

	mu        sync.Mutex                    // also keeps calls to the engine in order
	wanted    []tcp.CC                      // of tcpilot's own, by the configuration
	requested map[tcp.CC]bool               // of tcpilot's own, loaded by the API since; true: auto
	users     map[tcp.CC]congestion.Control // loaded
	leaving   map[tcp.CC]bool               // about to be unloaded
	failed    map[tcp.CC]error              // wanted, and not loaded
	modules   map[tcp.CC]error              // named by rules, but the kernel has no module for them
	inKernel  []tcp.CC                      // what the kernel had at the last poll
}

// controlPins is the directory of the catalogue's pins, beside the datapath's versions.
func controlPins(bpffs string) string { return filepath.Join(datapath.PinDir(bpffs), "cc") }

func openControls(bpffs string, log *slog.Logger) (*controls, error) {
	catalogue, err := cc.Open(controlPins(bpffs), log)
	if err != nil {
		return nil, fmt.Errorf("open congestion controls: %w", err)
	}
	return &controls{
		Catalogue: catalogue, requested: map[tcp.CC]bool{}, failed: map[tcp.CC]error{},
		users: map[tcp.CC]congestion.Control{}, leaving: map[tcp.CC]bool{}, modules: map[tcp.CC]error{},
	}, nil
}

// want loads what the configuration wants, and makes the kernel load the modules of what
// its rules name. It stores what is not available, and why.
func (c *controls) want(ctx context.Context, wanted []tcp.CC, rules []policy.Rule) {
	failed, modules := map[tcp.CC]error{}, tryModules(rules)
	for _, name := range wanted {
		if err := c.Load(ctx, name.String()); err != nil {
			failed[name] = err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted, c.failed, c.modules = slices.Clone(wanted), failed, modules
}

// forgetRequested drops what was loaded by request, so that only what the configuration wants
// is left.
func (c *controls) forgetRequested() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.requested)
}

// retryLoads loads what could not be loaded because another process had registered it, once
// that process has unloaded it.
func (c *controls) retryLoads(ctx context.Context) {
	c.mu.Lock()
	var gone []tcp.CC
	for name, err := range c.failed {
		if errors.Is(err, unix.EEXIST) && !slices.Contains(c.inKernel, name) {
			gone = append(gone, name)
		}
	}
	c.mu.Unlock()
	for _, name := range gone {
		err := c.Load(ctx, name.String())
		c.mu.Lock()
		if c.failed[name] = err; err == nil {
			delete(c.failed, name)
		}
		c.mu.Unlock()
	}
}

// tryModules makes the kernel load the modules of its congestion controls that rules
// name, and returns which are not available.
func tryModules(rules []policy.Rule) map[tcp.CC]error {
	missing := map[tcp.CC]error{}
	for _, name := range policy.Wanted(rules) {
		if congestion.HasOwnName(name) {
			continue
		}
		if err := kernelcc.Try(name.String()); err != nil {
			missing[name] = err
		}
	}
	return missing
}

// trim unloads tcpilot's own controls that are not wanted. Policies must not name them.
func (c *controls) trim() error {
	rows, err := c.Loaded()
	for _, row := range rows {
		if _, requested := c.isRequested(row.CC); !row.User && !requested && !c.isWanted(row.CC) {
			_, unloaded := c.Unload(row.CC.String())
			err = errors.Join(err, unloaded)
		}
	}
	return err
}

func (c *controls) isWanted(name tcp.CC) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.wanted, name)
}

// isRequested reports whether name was loaded by request, and whether as an arm of auto.
func (c *controls) isRequested(name tcp.CC) (auto, requested bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	auto, requested = c.requested[name]
	return auto, requested
}

// version is the version of a loaded control, and empty for others.
func (c *controls) version(name tcp.CC) string {
	rows, _ := c.Loaded()
	for _, row := range rows {
		if row.CC == name {
			return row.Version
		}
	}
	return ""
}

// unloadAll removes all of them from the kernel. A control that another process also holds stays
// registered.
func (c *controls) unloadAll(log *slog.Logger) error {
	rows, err := c.Loaded()
	for _, row := range rows {
		if _, err := c.Unload(row.CC.String()); err != nil {
			log.Warn("congestion control not unloaded", "cc", row.CC, "error", err)
		}
	}
	return err
}

// poll reads what the kernel has. The caller has c.mu.
func (c *controls) poll() error {
	names, err := kernelcc.Available()
	if err == nil {
		c.inKernel = parseCCs(names)
	}
	return err
}

// offer passes the engine the congestion controls that connections may get now: the
// kernel's, and the wanted ones in BPF.
func (c *controls) offer(e *engine.Engine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.poll(); err != nil {
		return err
	}
	def, err := kernelcc.Default()
	if err != nil {
		return err
	}
	usual, _ := tcp.ParseCC(def)
	e.SetOffered(c.offers(), usual)
	for _, missing := range []map[tcp.CC]error{c.failed, c.modules} {
		for name, err := range missing {
			if !slices.Contains(c.inKernel, name) {
				e.ArmMissing(name, err.Error())
			}
		}
	}
	return nil
}

// offers lists the controls that the kernel has and that may be used. A control with the name
// of one of tcpilot's own may be registered but not wanted: another process uses it, or a
// user's object is being tested under that name. One that is wanted may be registered although
// it could not be loaded here, for the same reason. A control that is neither Linux's nor known
// is only for rules that name it: it may belong to another process.
func (c *controls) offers() []congestion.Control {
	list := make([]congestion.Control, 0, len(c.inKernel))
	for _, name := range c.inKernel {
		o := congestion.Of(name)
		if user, ok := c.users[name]; ok {
			o = user
		} else if !congestion.HasOwnName(name) && !congestion.IsLinux(name) {
			o.ByName = true
		}
		auto, requested := c.requested[name]
		switch {
		case c.leaving[name]:
			continue
		case congestion.HasOwnName(name) && !requested && !slices.Contains(c.wanted, name):
			continue
		case auto:
			o.ByName = false
		}
		list = append(list, o)
	}
	return list
}

// usable lists the controls that offers would offer now.
func (c *controls) usable() ([]tcp.CC, error) {
	c.mu.Lock()
	err := c.poll()
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return c.usableBefore()
}

// usableBefore lists the controls that offers would offer by the latest reading of the kernel's list.
func (c *controls) usableBefore() (ccs []tcp.CC, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.offers() {
		ccs = append(ccs, o.CC)
	}
	return ccs, nil
}

// refresh reads what users have loaded.
func (c *controls) refresh() error {
	rows, err := c.Loaded() // has a row even for one that cannot be read
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.users)
	for _, row := range rows {
		if row.User {
			c.users[row.CC] = row.Control
		}
	}
	return err
}

// loadRequested loads one of tcpilot's own until the next reload.
func (c *controls) loadRequested(ctx context.Context, name tcp.CC, auto bool) error {
	err := c.Load(ctx, name.String())
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.requested[name] = auto
		delete(c.failed, name)
	}
	return err
}

// leave stops offering name, or offers it again.
func (c *controls) leave(name tcp.CC, leaving bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving[name] = leaving
}

// forget drops the state of a control that was unloaded.
func (c *controls) forget(name tcp.CC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.requested, name)
	c.wanted = slices.DeleteFunc(c.wanted, func(w tcp.CC) bool { return w == name })
}

// features lists which of tcpilot's own are wanted, and why some are not active.
func (c *controls) features() []api.Feature {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []api.Feature
	for _, name := range c.wanted {
		err := c.failed[name]
		if slices.Contains(c.inKernel, name) {
			err = nil // another process has loaded it
		}
		out = append(out, controlFeature(name, err))
	}
	return out
}

func controlFeature(name tcp.CC, err error) api.Feature {
	f := api.Feature{Name: "struct_ops/" + name.String() + ": congestion control", Wanted: true, Active: err == nil}
	if err != nil {
		f.Why = err.Error()
	}
	return f
}

// whyAbsent returns why this kernel does not accept one of tcpilot's own; nil if it does.
func whyAbsent(rows []cc.Control, name tcp.CC) error {
	for _, row := range rows {
		if row.CC == name && row.State == cc.Absent {
			return errors.New(row.Why)
		}
	}
	return nil
}

// counts are for the metrics: sockets by congestion control. If one control cannot be read, the
// others are counted.
func (c *controls) counts(log *slog.Logger) map[string]int {
	rows, err := c.Loaded()
	if err != nil {
		log.Debug("congestion control not read", "error", err)
	}
	sockets := make(map[string]int, len(rows))
	for _, row := range rows {
		sockets[row.CC.String()] = row.Connections
	}
	return sockets
}

// tryControls lists what this kernel accepts, beside what is loaded.
func tryControls() ([]cc.Control, error) {
	dir, err := os.MkdirTemp("", "tcpilot-cc-")
	if err != nil {
		return nil, fmt.Errorf("try congestion controls: %w", err)
	}
	defer os.RemoveAll(dir)
	catalogue, err := cc.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	rows, err := catalogue.List()
	return rows, errors.Join(err, catalogue.Close())
}

// Controls implements api.Backend.
func (d *Daemon) Controls(context.Context) (api.ControlList, error) {
	rows, err := d.controls.List()
	out := api.ControlList{At: time.Now()}
	for i := range rows {
		out.Controls = append(out.Controls, d.control(&rows[i]))
	}
	return out, err
}

func (d *Daemon) control(row *cc.Control) api.CongestionControl {
	name := row.CC
	out := api.CongestionControl{
		Name: name.String(), State: string(row.State), Why: row.Why, Source: row.Source, User: row.User,
		Wanted: d.controls.isWanted(name), Rules: rulesNaming(d.engine.Rules(), name),
		NeedsECN: row.NeedsECN, Auto: !row.ByName, Version: row.Version, Outdated: row.Outdated, Connections: row.Connections,
	}
	out.Wanted = out.Wanted || len(out.Rules) > 0
	auto, _ := d.controls.isRequested(name)
	out.Auto = out.Auto || auto
	for _, p := range row.Programs {
		out.Programs = append(out.Programs, programStats(p.Name, p))
	}
	return out
}

// rulesNaming lists the rules that name a congestion control.
func rulesNaming(rules []policy.Rule, name tcp.CC) (names []string) {
	for i := range rules {
		if slices.Contains(rules[i].CCs(), name) {
			names = append(names, rules[i].Name)
		}
	}
	return names
}

// LoadControl implements api.Backend.
func (d *Daemon) LoadControl(ctx context.Context, r api.LoadControlRequest) (api.CongestionControl, error) {
	var err error
	hint := "docs/congestion-controls.md describes what an object of your own must have"
	parsed, valid := tcp.ParseCC(r.Name)
	before := d.controls.version(parsed)
	switch {
	case r.File == "" && !(valid && congestion.IsOwn(parsed)):
		return api.CongestionControl{}, api.NotFound("tcpilot has no congestion control %q of its own", r.Name).
			WithHint("see 'tcpilot cc list'; to load your own, name its file: tcpilot cc load NAME FILE")
	case r.File == "":
		err, hint = d.controls.loadRequested(ctx, parsed, r.Auto), "'tcpilot doctor' shows what this kernel accepts"
	default:
		if err = d.dp.RoomForCC(parsed); err == nil {
			err = d.controls.LoadUser(ctx, r.Name, r.File, r.Auto)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return api.CongestionControl{}, api.Conflicts("%v", err).
			WithHint("another process has it loaded: it is used as it is, and 'tcpilot cc list' shows it")
	}
	if err != nil {
		return api.CongestionControl{}, api.Invalid("%v", err).WithHint("%s", hint)
	}
	after, err := d.controls.One(r.Name)
	if err == nil && before != "" && before != after.Version {
		d.engine.Forget(parsed) // what was learned is about the former version
	}
	if err := errors.Join(err, d.offerControls()); err != nil {
		return api.CongestionControl{}, err
	}
	return d.control(&after), nil
}

func (d *Daemon) oneControl(name string) (api.CongestionControl, error) {
	row, err := d.controls.One(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && row.State != cc.Loaded {
		return api.CongestionControl{}, api.NotFound("no congestion control %q is loaded here", name).WithHint("see 'tcpilot cc list'")
	}
	return d.control(&row), err
}

// offerControls offers what is loaded now, and writes the policies.
func (d *Daemon) offerControls() error {
	err := errors.Join(d.controls.refresh(), d.controls.offer(d.engine))
	return errors.Join(err, d.engine.Settle(time.Now().UnixNano()))
}

// UnloadControl implements api.Backend.
func (d *Daemon) UnloadControl(_ context.Context, name string) (api.Unloaded, error) {
	row, err := d.oneControl(name)
	if err != nil {
		return api.Unloaded{}, err
	}
	if len(row.Rules) > 0 {
		return api.Unloaded{}, api.Conflicts("rule %s names congestion control %s", row.Rules[0], name).
			WithHint("change the rule and reload, then unload it")
	}
	parsed, _ := tcp.ParseCC(name)
	d.controls.leave(parsed, true)
	err = d.offerControls()
	var n int
	if err == nil {
		n, err = d.controls.Unload(name)
	}
	if err == nil {
		d.controls.forget(parsed)
		if row.User { // the next one of this name may be another control
			d.engine.Forget(parsed)
		}
	}
	d.controls.leave(parsed, false)
	return api.Unloaded{Connections: n}, errors.Join(err, d.offerControls())
}
