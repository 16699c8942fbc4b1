package config

import (
	"io/fs"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// decoder fills structs from the tree of one file.
type decoder struct {
	*yamlfile.Decoder
	// at has the place of each decoded value, by pointer to its destination.
	at map[any]yamlfile.Place
	// broken has the structs, by pointer, that contain a mistake.
	broken map[any]bool
}

func newDecoder(d *yamlfile.Decoder) *decoder {
	return &decoder{d, make(map[any]yamlfile.Place), make(map[any]bool)}
}

// structs decodes the entries of a mapping into the fields of structs; of two fields with one key,
// the first is filled. For an unknown key, misplaced says where it belongs, if anywhere.
func (d *decoder) structs(n *yamlfile.Node, misplaced func(key string) string, structs ...reflect.Value) {
	var keys []string
	var into []func(*yamlfile.Node)
	for _, v := range structs {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			keys = append(keys, f.Tag.Get("key"))
			into = append(into, func(value *yamlfile.Node) { d.into(value, v.Field(i), f.Tag) })
		}
	}
	d.Fields(n, keys, func(key string) string {
		if misplaced != nil {
			if where := misplaced(key); where != "" {
				return where
			}
		}
		return "see docs/config.md for the keys that exist here"
	}, func(i int, value *yamlfile.Node) { into[i](value) })
}

// into decodes a node into a struct field of any kind, by its type and tag.
func (d *decoder) into(n *yamlfile.Node, v reflect.Value, tag reflect.StructTag) {
	p := v.Addr().Interface()
	before := d.Failed
	defer func() {
		if d.Failed > before {
			d.broken[p] = true
		}
	}()
	d.at[p] = n.Place
	switch p := p.(type) {
	case *setValues:
		d.set(n, p)
		return
	case *armList:
		d.arms(n, p)
		return
	case *ControlList:
		d.controls(n, p)
		return
	case *globs:
		d.globs(n, p)
		return
	case *HostSysctls:
		d.hostSysctls(n, p)
		return
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.into(n, v.Elem(), tag)
	case isText(v.Type()):
		if s, ok := d.text(n); ok {
			if err := parseText(s, v, tag); err != nil {
				d.Wrong(n, err)
			}
		}
	case v.Type() == reflect.TypeFor[fileRule]():
		d.structs(n, ruleKeyElsewhere, v)
	case v.Kind() == reflect.Struct:
		d.structs(n, nil, v)
	case v.Kind() == reflect.Slice:
		d.slice(n, v, tag)
	default:
		panic("config: no decoder for " + v.Type().String())
	}
}

// slice decodes a list; a single value is accepted as a list of one if the elements are single
// values. An empty list of structs is the same as a missing key.
func (d *decoder) slice(n *yamlfile.Node, v reflect.Value, tag reflect.StructTag) {
	nodes := n.Items
	if isText(v.Type().Elem()) {
		nodes = d.Values(n)
	} else if !d.Want(n, yamlfile.List) {
		return
	}
	if len(nodes) == 0 {
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(nodes), len(nodes)))
	for i, e := range nodes {
		d.into(e, v.Index(i), tag)
	}
}

// isText reports whether values of t are written as a single value.
func isText(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[netip.Prefix](), reflect.TypeFor[policy.PortRange](), reflect.TypeFor[tcp.CC]():
		return true
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Slice, reflect.Map, reflect.Pointer:
		return false
	}
	return true
}

// text returns the text of a single value.
func (d *decoder) text(n *yamlfile.Node) (string, bool) {
	if n.Style == yamlfile.Block {
		d.Fail(n.Place, "text blocks (| and >) are not supported", "write the value out")
		return "", false
	}
	return n.Text, d.Want(n, yamlfile.Text)
}

// parseText parses a single value by the type and tag of its destination.
func parseText(s string, v reflect.Value, tag reflect.StructTag) (err error) {
	if choices := tag.Get("oneof"); choices != "" && !slices.Contains(strings.Fields(choices), s) {
		return notOneOf(s, strings.Fields(choices))
	}
	switch p := v.Addr().Interface().(type) {
	case *bool:
		*p, err = ParseBool(s)
	case *int:
		*p, err = parseInt(s, tag)
	case *rate:
		*p, err = parseRateIn(s, tag)
	case *uint64:
		*p, err = parseSizeIn(s, tag)
	case *float64:
		*p, err = parseShareIn(s, tag)
	case *time.Duration:
		*p, err = parseDurationIn(s, tag)
	case *fs.FileMode:
		*p, err = parseMode(s)
	case *slog.Level:
		err = p.UnmarshalText([]byte(s))
	case *netip.Prefix:
		*p, err = parsePrefix(s)
	case *policy.PortRange:
		*p, err = parsePorts(s)
	case *policy.Direction:
		*p = policy.Direction(slices.Index([]string{"either", "outgoing", "incoming"}, s))
	case *learn.Objective:
		*p, err = learn.ParseObjective(s)
	case *tcp.CC:
		*p, err = ParseCC(s)
	case *string:
		*p, err = s, checkText(s, tag.Get("is"))
	default:
		panic("config: no parser for " + v.Type().String())
	}
	return err
}
