package pod

import (
	"path"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	web := &Pod{Namespace: "shop", Name: "web-1", Annotations: map[string]string{"tcpilot.io/profile": "bulk", "path": "a/b", "empty": ""}}
	for _, c := range []struct {
		m    Match
		want bool
		text string
	}{
		{Match{}, true, "*/*"},
		{Match{Namespace: []string{"shop"}}, true, "shop/*"},
		{Match{Namespace: []string{"shop"}, Name: []string{"db", "web-*"}}, true, "shop/db|web-*"},
		{Match{Name: []string{"web"}}, false, "*/web"},
		{Match{Name: []string{"web-?"}}, true, "*/web-?"},
		{Match{Name: []string{"web-[2-9]"}}, false, "*/web-[2-9]"},
		{Match{Namespace: []string{"Shop"}}, false, "Shop/*"},
		{Match{Namespace: []string{"shops"}, Name: []string{"web-1"}}, false, "shops/web-1"},
		{Match{Annotations: map[string]string{"tcpilot.io/profile": "bulk"}}, true, "*/* [tcpilot.io/profile=bulk]"},
		{Match{Annotations: map[string]string{"tcpilot.io/profile": "bulk", "gone": "*"}}, false, "*/* [gone=* tcpilot.io/profile=bulk]"},
		{Match{Annotations: map[string]string{"path": "*"}}, true, "*/* [path=*]"},
		{Match{Annotations: map[string]string{"path": "a/*"}}, true, "*/* [path=a/*]"},
		{Match{Annotations: map[string]string{"path": "b*"}}, false, "*/* [path=b*]"},
		{Match{Annotations: map[string]string{"empty": "*"}}, true, "*/* [empty=*]"},
		{Match{Name: []string{"[", "web-1"}}, true, "*/[|web-1"}, // a bad one matches nothing
		{Match{Name: []string{"["}}, false, "*/["},
	} {
		if got := c.m.Match(web); got != c.want {
			t.Errorf("%s: got %v", c.text, got)
		}
		if got := c.m.String(); got != c.text {
			t.Errorf("written %q, want %q", got, c.text)
		}
	}
	if m := (Match{Annotations: map[string]string{"a": "*"}}); m.Match(&Pod{}) {
		t.Error("a pod without annotations matches one")
	}
}

func TestCovers(t *testing.T) {
	all, shop, web := Match{}, Match{Namespace: []string{"shop"}}, Match{Namespace: []string{"shop"}, Name: []string{"web-*"}}
	bulk, any := Match{Annotations: map[string]string{"p": "bulk"}}, Match{Namespace: []string{"*"}, Annotations: map[string]string{"p": "*"}}
	two := Match{Namespace: []string{"prod", "shop"}}
	for _, c := range []struct {
		m, o Match
		want bool
	}{
		{all, all, true}, {all, web, true}, {shop, all, false}, {shop, web, true}, {web, shop, false}, {web, web, true},
		{any, bulk, true}, {bulk, any, false}, {any, all, false}, {all, any, true}, {two, shop, true}, {shop, two, false}, {two, all, false},
	} {
		if got := c.m.Covers(&c.o); got != c.want {
			t.Errorf("%s covers %s: got %v", &c.m, &c.o, got)
		}
	}
}

func TestCheckGlob(t *testing.T) {
	for g, want := range map[string]string{
		"web-*": "", "[a-z]?": "", "a/b": "", `\*`: "", "": "empty", "[": "not a pattern", "a[b": "not a pattern", `a\`: "not a pattern", "[]a]": "not a pattern", "x[/": "not a pattern",
	} {
		err := CheckGlob(g)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", g, err, want)
		}
	}
}

// A glob that is accepted never fails when it is used, matches as path.Match does where there is no
// slash, and a pod that o selects is selected by each m that covers o.
func FuzzMatch(f *testing.F) {
	f.Add("web-*", "w*", "web-1", "bulk")
	f.Add("[a-z]", "*", "x", "a/b")
	f.Add(`\[`, "a/*", "[", "")
	f.Fuzz(func(t *testing.T, g, h, text, value string) {
		bad := CheckGlob(g) != nil
		if _, err := path.Match(withoutSlash(g), withoutSlash(text)); err != nil && !bad {
			t.Errorf("%q was accepted: %v", g, err)
		}
		if strings.Contains(g+text, "/") || strings.Contains(g+text, "\x00") {
			return
		}
		if want, err := path.Match(g, text); glob(g, text) != (want && err == nil) {
			t.Errorf("%q of %q: path.Match says %v", g, text, want)
		}
		p := &Pod{Name: text, Annotations: map[string]string{"a": value}}
		matches := []Match{{}, {Name: []string{g}}, {Name: []string{g, h}}, {Name: []string{"*"}}, {Annotations: map[string]string{"a": h}},
			{Name: []string{h}, Annotations: map[string]string{"a": "*"}}}
		for i := range matches {
			for j := range matches {
				m, o := &matches[i], &matches[j]
				if m.Covers(o) && o.Match(p) && !m.Match(p) {
					t.Errorf("%s covers %s, which selects what the first does not: %+v", m, o, p)
				}
			}
		}
	})
}
