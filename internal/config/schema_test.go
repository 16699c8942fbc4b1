package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestSchemaIsUpToDate(t *testing.T) {
	name := filepath.Join(docs, "config.schema.json")
	if *update {
		if err := os.WriteFile(name, Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(have, Schema()) {
		t.Errorf("%s is stale (%v): run go generate ./internal/config", name, err)
	}
}

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("config.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("config.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validate checks a file as an editor would.
func validate(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

// The shipped files, and the README's example, are valid by the schema too.
func TestShippedFilesFitTheSchema(t *testing.T) {
	s := compiledSchema(t)
	files, err := filepath.Glob(filepath.Join(docs, "examples", "*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	files = append(files, filepath.Join(docs, "..", "deploy", "tcpilot.yaml"), filepath.Join(docs, "..", "README.md"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if filepath.Ext(file) == ".md" {
			_, text, _ = strings.Cut(text, "```yaml\n")
			text, _, _ = strings.Cut(text, "```\n")
		}
		if err := validate(t, s, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Blocks of the documentation that begin with a key of the configuration are valid configurations.
func TestConfigurationsOfTheDocumentation(t *testing.T) {
	s := compiledSchema(t)
	pages, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^```yaml\n((?:rules|pods|host|buffers|learning|metrics|mode):.*?)^```$")
	n := 0
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(data), -1) {
			n++
			_, err := Parse(filepath.Base(page), []byte(m[1]))
			if err = errors.Join(err, validate(t, s, m[1])); err != nil {
				t.Errorf("%s: %v\n%s", filepath.Base(page), err, m[1])
			}
		}
	}
	if n < 8 {
		t.Errorf("only %d configurations were found", n)
	}
}

// The schema and the parser agree on everything that a schema can express.
func TestSchemaAgreesWithTheParser(t *testing.T) {
	s := compiledSchema(t)
	rule := func(text string) string { return "rules: [{name: a, " + text + "}]" }
	for text, valid := range map[string]bool{
		"":                                     true,
		"interval: 0":                          true,
		"interval: 1m30s":                      true,
		"interval: 5":                          false,
		"intervall: 5s":                        false,
		"mode: observe":                        true,
		"mode: watch":                          false,
		"log: {level: warn}":                   true,
		"socket: {mode: 0660, admins: 10}":     true,
		"metrics: {listen: \"\"}":              true,
		"metrics: {top_paths: 20000}":          false,
		"learning: {hold_out: 2%}":             true,
		"learning: {hold_out: 0.02}":           true,
		"learning: {hold_out: 1}":              false,
		"congestion_controls: none":            true,
		"congestion_controls: [tcpilot_cubic]": true,
		"learning: {paths: {overrides: [{prefix: 10.0.0.0/8, bits: 16}]}}": true,
		"rules: [{learn: {}}]":                                        false,
		rule("learn: {}"):                                             true,
		rule("learn: {arms: auto}"):                                   true,
		rule("learn: {arms: [cubic, bbr]}, rollout: 100%"):            true,
		rule("learn: {arms: [cubic, bbr]}, rollout: 1"):               false,
		rule("learn: {objective: speed}"):                             false,
		rule("match: {remote: 10.0.0.0/8}, learn: {}"):                true,
		rule("match: {remote: [10.0.0.0/8, \"fd00::1\"]}, learn: {}"): true,
		rule("match: {remote_port: [443, 8000-8100]}, learn: {}"):     true,
		rule("match: {remote_port: http}, learn: {}"):                 false,
		rule("match: {direction: both}, learn: {}"):                   false,
		rule("match: {same_prefix: {ipv4: 24}}, learn: {}"):           true,
		rule("match: {same_prefix: {ipv4: 240}}, learn: {}"):          false,
		rule("set: {cc: reno, init_cwnd: 20, nodelay: true}"):         true,
		rule("set: {}"):                                           false,
		rule("set: {init_cwnd: 5000}"):                            false,
		rule("set: {rto_min: 5}"):                                 false,
		rule("set: {rto_min: 5ms, sndbuf: 64KiB, rcvbuf: 64Ki}"):  true,
		rule("set: {sndbuf: 64K}"):                                false,
		rule("set: {max_pacing_rate: 200Mbit/s}"):                 true,
		rule("set: {max_pacing_rate: 200Mbps}"):                   false,
		rule("set: {nodelay: 1}"):                                 false,
		rule("watch: {events: rto}"):                              true,
		rule("watch: {events: [rto, state], share: 5%}"):          true,
		rule("watch: {events: [timeouts]}"):                       false,
		rule("leave: true"):                                       true,
		rule("rto_min: 5ms"):                                      false,
		rule("learn: {}, set: {mark: 4294967295, rto_max: 2.5s}"): true,
		rule("match: {netns: [blue, 17], cgroup: /a}, learn: {}"): true,
		rule("match: {pod: {}}, learn: {}"):                       true,
		rule("match: {pod: {namespace: shop, name: [web-*, 7], annotation: {tcpilot.io/profile: bulk}}}, learn: {}"): true,
		rule("match: {pod: {annotation: {}}}, learn: {}"):                                                            false,
		rule("match: {pod: {label: web}}, learn: {}"):                                                                false,
	} {
		_, parsed := Parse("x.yaml", []byte(text))
		if (parsed == nil) != valid {
			t.Errorf("%s: the parser says %v", text, parsed)
		}
		if err := validate(t, s, text); (err == nil) != valid {
			t.Errorf("%s: the schema says %v", text, err)
		}
	}
}
