package pod

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Match selects pods. All conditions have to hold; the zero value holds for every pod. Globs are
// as in path.Match, without its separator: * matches a / as well.
type Match struct {
	Namespace, Name []string          // any of these globs
	Annotations     map[string]string // by name: a glob of the value; an annotation that is missing does not match
}

// Match reports whether p is selected.
func (m *Match) Match(p *Pod) bool {
	if !anyGlob(m.Namespace, p.Namespace) || !anyGlob(m.Name, p.Name) {
		return false
	}
	for name, g := range m.Annotations {
		if value, ok := p.Annotations[name]; !ok || !glob(g, value) {
			return false
		}
	}
	return true
}

// Covers reports whether m certainly selects every pod that o selects. It compares conditions by
// their text, so that false does not mean that there is such a pod.
func (m *Match) Covers(o *Match) bool {
	globs := func(m, o []string) bool {
		return len(m) == 0 || slices.Contains(m, "*") ||
			len(o) != 0 && !slices.ContainsFunc(o, func(g string) bool { return !slices.Contains(m, g) })
	}
	if !globs(m.Namespace, o.Namespace) || !globs(m.Name, o.Name) {
		return false
	}
	for name, g := range m.Annotations {
		if other, ok := o.Annotations[name]; !ok || g != other && g != "*" {
			return false
		}
	}
	return true
}

// String writes the conditions for people: "shop/web-*|db [tcpilot.io/profile=bulk]".
func (m *Match) String() string {
	list := func(globs []string) string {
		if len(globs) == 0 {
			return "*"
		}
		return strings.Join(globs, "|")
	}
	text := list(m.Namespace) + "/" + list(m.Name)
	var annotations []string
	for _, name := range slices.Sorted(maps.Keys(m.Annotations)) {
		annotations = append(annotations, name+"="+m.Annotations[name])
	}
	if annotations != nil {
		text += " [" + strings.Join(annotations, " ") + "]"
	}
	return text
}

// CheckGlob returns what is wrong with a glob of Match.
func CheckGlob(g string) error {
	if g == "" {
		return errors.New("the pattern is empty")
	}
	if _, err := path.Match(withoutSlash(g), ""); err != nil {
		return fmt.Errorf("%q is not a pattern: a [ without its ], or a \\ at the end", g)
	}
	return nil
}

func anyGlob(globs []string, text string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool { return glob(g, text) })
}

// glob reports whether a glob matches text; one that CheckGlob refuses matches nothing.
func glob(g, text string) bool {
	ok, err := path.Match(withoutSlash(g), withoutSlash(text))
	return ok && err == nil
}

// withoutSlash replaces / by a character that neither names nor values have, because path.Match
// treats it as a separator.
func withoutSlash(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
