package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/regular"
)

type reloadRequest struct{ done chan reloadAnswer }

type reloadAnswer struct {
	result api.ReloadResult
	err    error
}

// reload puts the rules of the configuration file into force. If the file has a mistake,
// nothing changes.
func (d *Daemon) reload() (api.ReloadResult, error) {
	old := d.cfg.Load()
	merged, restart := old, []string(nil)
	next, file, err := loadConfigAgain(d.opt.Config, config.DefaultFile)
	if err == nil {
		if d.opt.Socket != "" {
			next.Socket.Path = d.opt.Socket
		}
		merged, restart = config.Reload(old, next)
		err = d.apply(merged)
	}
	if err != nil {
		text := err.Error()
		d.reloadErr.Store(&text)
		d.log.Error("configuration not reloaded, the old one stays in force", "file", file, "error", err)
		return api.ReloadResult{}, api.Invalid("configuration not reloaded, the old one stays in force: %v", err)
	}
	result := diffRules(old.Rules, merged.Rules)
	result.Config, result.Mode, result.Rules = file, merged.Mode, len(merged.Rules)
	for _, key := range restart {
		result.Warnings = append(result.Warnings, key+" changed: restart tcpilot for it to take effect")
	}
	d.needRestart.Store(&restart)
	d.cfg.Store(merged)
	d.reloadPodDevices()
	d.nodeRoutes.reload()
	d.file.Store(&file)
	d.loadedAt.Store(time.Now().UnixNano())
	d.reloadErr.Store(nil)
	offered := d.offerControls()
	if offered != nil {
		result.Warnings = append(result.Warnings, offered.Error()+": trying again")
	}
	if err := d.putSettings(); err != nil {
		result.Warnings = append(result.Warnings, err.Error()+": trying again")
	}
	if err := d.putLimits(); err != nil {
		result.Warnings = append(result.Warnings, err.Error()+": some rate limits may not be in force")
	}
	if offered == nil { // no policy names the other congestion controls
		if err := d.controls.trim(); err != nil {
			result.Warnings = append(result.Warnings, err.Error())
		}
	}
	for _, f := range d.controls.features() {
		if !f.Active {
			result.Warnings = append(result.Warnings, f.Why)
		}
	}
	d.log.Info("configuration reloaded", "file", file, "mode", merged.Mode, "rules", len(merged.Rules),
		"added", result.Added, "removed", result.Removed, "changed", result.Changed)
	for _, w := range result.Warnings {
		d.log.Warn("configuration reloaded in part", "file", file, "warning", w)
	}
	return result, nil
}

// loadConfigAgain is loadConfig for a running daemon. It refuses files that are not regular,
// because reading a pipe or device could block the daemon. standard is read if no file is
// named, and need not exist.
func loadConfigAgain(file, standard string) (*config.Config, string, error) {
	read := cmp.Or(file, standard)
	data, err := regular.Read(read, config.MaxFile)
	if file == "" && errors.Is(err, fs.ErrNotExist) {
		return config.Default(), "", nil
	}
	if err != nil {
		return nil, read, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := config.Parse(read, data)
	return cfg, read, err
}

// apply does everything that can fail before it changes what connections get.
func (d *Daemon) apply(next *config.Config) error {
	d.controls.want(context.Background(), next.CongestionControls, next.Rules)
	// Observe first: new rules must not be applied, even briefly, in mode observe.
	old, observe := d.cfg.Load(), next.Mode == engine.ModeObserve
	if observe {
		d.engine.SetObserve(true, time.Now().UnixNano())
	}
	err := d.putRules(next.Rules, func(rules []policy.Rule) error {
		return d.engine.SetRules(rules, d.resolver(), time.Now().UnixNano())
	})
	if err != nil {
		d.engine.SetObserve(old.Mode == engine.ModeObserve, time.Now().UnixNano())
		d.controls.want(context.Background(), old.CongestionControls, old.Rules)
		return errors.Join(err, d.controls.trim())
	}
	d.engine.SetObserve(observe, time.Now().UnixNano())
	d.controls.forgetRequested()
	d.engine.ClearYields()
	d.sysctls.refresh()
	d.buffers.release()
	d.profile.release()
	d.engine.ReviveArms()
	return nil
}

func diffRules(old, next []policy.Rule) (r api.ReloadResult) {
	for i := range next {
		was := ruleNamed(old, next[i].Name)
		switch {
		case was == nil:
			r.Added = append(r.Added, next[i].Name)
		case !reflect.DeepEqual(was, &next[i]):
			r.Changed = append(r.Changed, next[i].Name)
		}
	}
	for i := range old {
		if ruleNamed(next, old[i].Name) == nil {
			r.Removed = append(r.Removed, old[i].Name)
		}
	}
	return r
}
