package api_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
)

// documents are the types of all requests and answers.
func documents() []reflect.Type {
	list := []reflect.Type{reflect.TypeFor[api.Error](), reflect.TypeFor[api.ExplainRequest]()}
	for _, r := range routes {
		if list = append(list, reflect.TypeOf(r.answer)); r.body != nil {
			list = append(list, reflect.TypeOf(r.body))
		}
	}
	return list
}

// An answer is an object, so that fields can be added to it.
func TestAnswersAreObjects(t *testing.T) {
	for _, d := range documents() {
		if d.Kind() != reflect.Struct {
			t.Errorf("%s is no object", d)
		}
	}
}

// TestUnitsAreInNames checks the fields of every answer against the rules in the package's
// documentation.
func TestUnitsAreInNames(t *testing.T) {
	w := walker{seen: map[reflect.Type]bool{}, units: map[string]string{}}
	for _, d := range documents() {
		w.walk(d)
	}
	for _, wrong := range w.wrong {
		t.Error(wrong)
	}
	if len(w.seen) < 30 {
		t.Errorf("only %d types were found", len(w.seen))
	}
}

// The rules detect names without units.
func TestMissingUnitsAreDetected(t *testing.T) {
	for want, typ := range map[string]reflect.Type{
		"a duration": reflect.TypeFor[struct {
			A time.Duration `json:"lease_ms"`
		}](),
		"a round-trip time": reflect.TypeFor[struct {
			A uint32 `json:"min_rtt"`
		}](),
		"one of the kernel": reflect.TypeFor[struct {
			A time.Duration `json:"srtt_ns"`
		}](),
		"a number": reflect.TypeFor[struct {
			A []struct {
				B *float64 `json:"tick_seconds"`
			}
		}](),
		"a time": reflect.TypeFor[struct {
			A int64 `json:"last_used"`
		}](),
		"a time in another form": reflect.TypeFor[struct {
			A string `json:"since"`
		}](),
		"a rate": reflect.TypeFor[struct {
			A uint64 `json:"delivery_rate"`
		}](),
		"no name": reflect.TypeFor[struct{ A uint64 }](),
		"two units": reflect.TypeFor[struct {
			A uint64 `json:"x_ns"`
			B struct {
				A uint64 `json:"x_us"`
			}
		}](),
	} {
		w := walker{seen: map[reflect.Type]bool{}, units: map[string]string{}}
		if w.walk(typ); len(w.wrong) == 0 {
			t.Errorf("%s is not found", want)
		}
	}
	// A time.Time is written in RFC 3339.
	if b, err := json.Marshal(time.Unix(0, 1).UTC()); err != nil || string(b) != `"1970-01-01T00:00:00.000000001Z"` {
		t.Errorf("a time is %s, %v", b, err)
	}
}

var (
	unitSuffix = regexp.MustCompile("_(ns|us|ms|s|sec|seconds|bytes_per_second|bytes|bits)$")
	roundTrip  = regexp.MustCompile("(^|_)s?(rtt|rttvar)(_|$)")
	rate       = regexp.MustCompile("(^|_)(rate|bw|goodput|throughput)(_|$)")
	timeName   = regexp.MustCompile("(^|_)(at|since|until|expires|started|last_used|last_saved|created|attached)$")
)

// walker visits every JSON field of a type, and of the types within it.
type walker struct {
	seen  map[reflect.Type]bool
	units map[string]string // of each name without its unit
	wrong []string
}

func (w *walker) walk(t reflect.Type) {
	for k := t.Kind(); k == reflect.Pointer || k == reflect.Slice || k == reflect.Map || k == reflect.Array; k = t.Kind() {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || w.seen[t] || writesItself(t) {
		return
	}
	w.seen[t] = true
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "-" {
			if !f.Anonymous {
				w.field(t, &f, name)
			}
			w.walk(f.Type)
		}
	}
}

func writesItself(t reflect.Type) bool {
	text := reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
	return t.Implements(text) || reflect.PointerTo(t).Implements(text)
}

func (w *walker) field(t reflect.Type, f *reflect.StructField, name string) {
	say := func(what string) { w.wrong = append(w.wrong, t.String()+"."+f.Name+" ("+name+"): "+what) }
	typ := f.Type
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	unit := unitSuffix.FindString(name)
	number := typ.Kind() >= reflect.Int && typ.Kind() <= reflect.Float64
	switch {
	case name == "":
		say("it has no name")
	case typ == reflect.TypeFor[time.Time]():
		if unit != "" {
			say("a time has no unit")
		}
	case timeName.MatchString(name):
		say("a time is a time.Time, which is written as of RFC 3339")
	case number && roundTrip.MatchString(name):
		if unit != "_us" || typ.Kind() == reflect.Float64 {
			say("a round-trip time is a whole number of _us")
		}
	case number && rate.MatchString(name):
		if unit != "_bytes_per_second" {
			say("a rate is in _bytes_per_second")
		}
	case typ == reflect.TypeFor[time.Duration]() && unit != "_ns":
		say("a duration is in _ns")
	case unit != "" && unit != "_ns" && unit != "_bytes":
		say("no field is in " + unit)
	}
	if number {
		base := strings.TrimSuffix(name, unit)
		if was, ok := w.units[base]; ok && was != unit {
			say("elsewhere its unit is " + was)
		}
		w.units[base] = unit
	}
}
