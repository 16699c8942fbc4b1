package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// Reload returns the configuration that is in force after next was read by a daemon that runs with old, and
// the keys that differ and need a restart. Keys with the tag reload:"yes" are put into force, and those with
// reload:"part" as far as their own keys are. The rule own-traffic is for the port on which metrics are served until the restart.
func Reload(old, next *Config) (inForce *Config, restart []string) {
	merged := *old
	restart = mergeReloaded(reflect.ValueOf(&merged).Elem(), reflect.ValueOf(next).Elem(), "")
	if merged.BuiltinRules {
		own := slices.DeleteFunc(slices.Clone(merged.Rules), func(r policy.Rule) bool { return r.Builtin })
		merged.Rules = append(builtinRules(merged.Metrics.Listen), own...)
	}
	return &merged, restart
}

func mergeReloaded(v, next reflect.Value, name string) (restart []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := yamlfile.Join(name, f.Tag.Get("key"))
		switch f.Tag.Get("reload") {
		case "yes":
			v.Field(i).Set(next.Field(i))
		case "part":
			restart = append(restart, mergeReloaded(v.Field(i), next.Field(i), key)...)
		default:
			if !reflect.DeepEqual(v.Field(i).Interface(), next.Field(i).Interface()) {
				restart = append(restart, key)
			}
		}
	}
	return restart
}

// reloadKeys lists the keys that a reload puts into force, and those that need a restart.
func reloadKeys(t reflect.Type, name string) (reload, restart []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		key := yamlfile.Join(name, f.Tag.Get("key"))
		switch f.Tag.Get("reload") {
		case "yes":
			reload = append(reload, key)
		case "part":
			a, b := reloadKeys(f.Type, key)
			reload, restart = append(reload, a...), append(restart, b...)
		default:
			restart = append(restart, key)
		}
	}
	return reload, restart
}

func referenceReload() string {
	reload, restart := reloadKeys(reflect.TypeFor[Config](), "")
	quoted := func(keys []string) string { return "`" + strings.Join(keys, "`, `") + "`" }
	return "\n## Reload\n\n`tcpilot reload`, or SIGHUP, puts these keys into force: " + quoted(reload) +
		".\nThese need a restart of the daemon: " + quoted(restart) +
		".\nIf a reload finds one of them changed, it warns, also in the log, and `tcpilot status` lists it until the restart.\n"
}
