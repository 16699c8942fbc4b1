package yamlfile

import (
	"fmt"
	"strings"
	"testing"
)

// read reads a text that must be valid YAML.
func read(t *testing.T, d *Decoder, text string) *Node {
	t.Helper()
	root := d.Read([]byte(text), 1000)
	if root == nil || d.Failed != 0 {
		t.Fatalf("%q: %v", text, d.Err())
	}
	return root
}

// A node knows its kind, style, path and position; a key without a value has the position of
// the key.
func TestNodes(t *testing.T) {
	d := &Decoder{}
	root := read(t, d, "plain: 1\n'quoted': \"2\"\n443: |\n  3\nlist:\n- x\n- {y: z}\nnone:\nopen: .inf\n")
	var got []string
	var walk func(n *Node)
	walk = func(n *Node) {
		got = append(got, fmt.Sprintf("%d:%d %s %s %q %d", n.Line, n.Col, n.Path, n.Kind, n.Text, n.Style))
		for _, e := range n.Entries {
			walk(e.Value)
		}
		for _, item := range n.Items {
			walk(item)
		}
	}
	walk(root)
	want := []string{
		`1:1  key: value entries "" 0`,
		`1:8 plain a single value "1" 0`,
		`2:11 quoted a single value "2" 1`,
		`3:6 443 a single value "3" 2`,
		`6:1 list a list "" 0`,
		`6:3 list[0] a single value "x" 0`,
		`7:3 list[1] key: value entries "" 0`,
		`7:7 list[1].y a single value "z" 0`,
		`8:1 none nothing "" 0`,
		`9:7 open a single value ".inf" 0`,
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	if e := root.Entries[1]; e.Key != "quoted" || e.At != (Place{2, 1, ""}) {
		t.Errorf("second entry: %+v", e)
	}
	if root.Get("443") == nil || root.Get("x") != nil || (*Node)(nil).Get("x") != nil {
		t.Error("Get finds the keys that there are, and no others")
	}
}

func TestFields(t *testing.T) {
	d := &Decoder{File: "f"}
	root := read(t, d, "b: 1\na: [2, 3]\nc:\nother: 4\nbb: 5\n")
	var got []string
	d.Fields(root, []string{"a", "bc", "b", "c"}, func(key string) string { return "not " + key }, func(i int, value *Node) {
		for _, v := range d.Values(value) {
			got = append(got, fmt.Sprint(i, v.Path, v.Text))
		}
	})
	if want := "[2b1 0a[0]2 0a[1]3]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	want := strings.Join([]string{
		"f:3:1: c: the key has no value; write one, or remove the key to have the default",
		`f:4:1: unknown key "other"; not other`,
		`f:5:1: unknown key "bb"; did you mean "bc"?`,
	}, "\n")
	if err := d.Err(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// A value of the wrong kind is reported at its place, once. What was reported when the tree was
// made is not reported again, but counts.
func TestWant(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1":      "want a list, found a single value; begin each entry",
		"a: {b: c}": "want a list, found key: value entries; begin each entry",
		"a:":        "the key has no value; write one",
		"a: []":     "the list is empty; write at least one value",
	} {
		d := &Decoder{}
		value := read(t, d, text).Get("a")
		for range 2 {
			if d.Want(value, List) {
				d.Values(value)
			}
		}
		if err := d.Err(); err == nil || !strings.HasPrefix(err.Error(), "a: "+want) || strings.Contains(err.Error(), "\n") || d.Failed != 2 {
			t.Errorf("%q: %v, met %d times", text, err, d.Failed)
		}
	}
	d := &Decoder{}
	root := d.Read([]byte("a: &x 1\n"), 100)
	if d.Want(root.Get("a"), Text) || d.Failed != 2 || len(d.Err().(Errors)) != 1 {
		t.Errorf("an anchor: %v, met %d times", d.Err(), d.Failed)
	}
}
