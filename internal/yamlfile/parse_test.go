package yamlfile

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		at      Position
		problem string // empty: there is none
	}{
		"mapping":           {text: "a: 1\nb: {c: [2]}\n"},
		"byte order mark":   {text: "\ufeffa: 1\n"},
		"comments":          {text: "# only\n"},
		"empty":             {text: ""},
		"same key":          {text: "a: 1\na: 2\n"},
		"too long":          {strings.Repeat("#", 101), Position{1, 1}, "larger than 100 bytes"},
		"not UTF-8":         {"a: 1\nb: \xff\n", Position{2, 4}, "no text"},
		"control character": {"a: \x01\n", Position{1, 4}, "no text"},
		"too deep":          {strings.Repeat("[", 40), Position{1, 33}, "more than 32 levels"},
		"two documents":     {"a: 1\n---\nb: 2\n", Position{3, 1}, "a second document"},
		"syntax":            {"a: [1\n", Position{1, 4}, "not YAML"},
	} {
		root, err := Parse([]byte(c.text), 100)
		var m *Mistake
		switch {
		case c.problem == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.problem == "":
			if hasNone := strings.Trim(c.text, "# only\n") == ""; (root == nil) != hasNone {
				t.Errorf("%s: root is %v", name, root)
			}
		case !errors.As(err, &m) || m.At != c.at || !strings.Contains(m.Problem, c.problem):
			t.Errorf("%s: %v at %v, want %q at %v", name, err, m, c.problem, c.at)
		}
	}
}

func TestKeys(t *testing.T) {
	root, err := Parse([]byte("plain: 1\n'quoted': 2\n443: 3\n<<: {a: b}\n"), 100)
	if err != nil {
		t.Fatal(err)
	}
	entries, ok := Entries(root)
	if !ok || len(entries) != 4 {
		t.Fatalf("%d entries, %v", len(entries), ok)
	}
	for i, want := range []string{"plain", "quoted", "443", "<<"} {
		if key, ok := Key(entries[i].Key); key != want || ok == (want == "<<") {
			t.Errorf("key %d is %q, %v; want %q", i, key, ok, want)
		}
		if at := Begin(entries[i].Key); at != (Position{i + 1, 1}) {
			t.Errorf("key %d is at %v", i, at)
		}
	}
}
