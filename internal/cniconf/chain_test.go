package cniconf

import (
	"bytes"
	"strings"
	"testing"
)

// flannel is a file as a network plugin writes it, with what an editor must not touch: odd spacing,
// keys in an order of their own, a number that floating point would change.
const flannel = `{
  "name": "cbr0",
  "cniVersion": "1.0.0",
  "vendor" : 12345678901234567890,
  "plugins": [
    {
      "type": "flannel",
      "delegate": { "hairpinMode": true, "isDefaultGateway": true }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`

func TestChainAddsAtTheEndAndKeepsTheRest(t *testing.T) {
	c, err := parse([]byte(flannel))
	if err != nil {
		t.Fatal(err)
	}
	const entry = `{"type": "tcpilot-cni"}`
	got := string(c.with(entry))
	want := strings.Replace(flannel, "      }\n    }\n  ]", "      }\n    },\n    "+entry+"\n  ]", 1)
	if got != want {
		t.Errorf("got:\n%s", got)
	}
	c, err = parse([]byte(`{"plugins":[{"type":"a"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(c.with(entry)); got != `{"plugins":[{"type":"a"}, {"type": "tcpilot-cni"}]}` {
		t.Errorf("on one line: %s", got)
	}
}

func TestChainRefusesWhatIsNoList(t *testing.T) {
	for text, want := range map[string]string{
		"": "is not JSON", "[]": "not a JSON object", "{}": "no plugins", `{"plugins":[]}`: "no plugins", `{"plugins":{}}`: "not an array",
		`{"plugins":[{}]}`: "without a type", `{"plugins":[{"type":"a"}],"plugins":[{"type":"b"}]}`: "twice", `{"plugins":[{"type":"a"}]} {}`: "is not JSON",
		`{"plugins":[{"type":"a"}`: "is not JSON", `{"type":"bridge"}`: "no plugins", `{"plugins":null}`: "not an array",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// What was added is removed without a trace, also if others have added plugins meanwhile.
func FuzzChainRestores(f *testing.F) {
	for _, seed := range []string{flannel, `{"plugins":[{"type":"a"}]}`, "{\"plugins\":[\n\t{\"type\":\"a\"}\r\n , {\"type\":\"b\",\"x\":[]}]}", `{"x":{"plugins":[]},"plugins":[ {"type":"a}"} ] }`, `{"plugins":[{"type":"tcpilot-cni"}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text)
		if err != nil || c.ours() >= 0 {
			return
		}
		with, err := parse(c.with(`{"type": "` + Type + `", "capabilities": {"bandwidth": true}}`))
		if err != nil {
			t.Fatalf("with it: %v\n%s", err, with.text)
		}
		at := with.ours()
		if at != len(c.plugins) || with.plugins[at-1].kind != c.plugins[at-1].kind {
			t.Fatalf("entry %d of %d", at, len(with.plugins))
		}
		if got := with.without(at); !bytes.Equal(got, text) {
			t.Fatalf("got:\n%s\nwant:\n%s", got, text)
		}
		const more = `{"type":"later"}`
		both, err := parse(with.with(more))
		if err != nil {
			t.Fatal(err)
		}
		rest, err := parse(both.without(both.ours()))
		if err != nil || len(rest.plugins) != len(c.plugins)+1 || rest.ours() >= 0 {
			t.Fatalf("without the first of two: %v\n%s", err, rest.text)
		}
		if got := rest.without(len(rest.plugins) - 1); !bytes.Equal(got, text) {
			t.Fatalf("after both: got:\n%s\nwant:\n%s", got, text)
		}
	})
}
