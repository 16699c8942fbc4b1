package api_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/engine"
)

//go:generate go test . -run ^TestAPIPagesAreUpToDate$ -update

// route is one row of the API's documentation. The tests of this file compare it with the
// handlers; field names and their comments come from the Go types.
type route struct {
	method, path string
	summary      string
	query        []param
	body, answer any // values of the types; nil is none
	change       bool
	stream       bool // lines of JSON instead of one document
}

type param struct{ name, example, meaning string }

var routes = []route{
	{method: "GET", path: "/v1/status", summary: "What the daemon is attached to, which features are active, counters", answer: api.Status{}},
	{method: "GET", path: "/v1/snapshot", summary: "All that the engine knows: rules, arms, paths", answer: engine.Snapshot{}},
	{method: "GET", path: "/v1/paths", summary: "What was learned, by path", answer: api.PathList{}, query: []param{
		{"prefix", "192.0.2.0/24", "only paths inside this prefix, and paths that contain it"},
		{"rule", "default", "only paths of this rule"},
		{"sort", "samples", "order: samples, recent, gain, rtt or prefix"},
		{"limit", "20", "greatest number of paths; 0 is all"},
		{"after", "", "the field next of an earlier answer to the same query: the paths that follow"},
	}},
	{method: "GET", path: "/v1/rules", summary: "The rules in force, in the order of matching", answer: api.RuleList{}},
	{method: "GET", path: "/v1/explain", summary: "What a new connection would get, and why", answer: api.Explanation{}, query: []param{
		{"remote", "192.0.2.7", "remote address; required"},
		{"remote_port", "443", "remote port"},
		{"local", "198.51.100.1", "local address"},
		{"local_port", "50001", "local port"},
		{"cgroup", "/system.slice/nginx.service", "cgroup v2 directory of the socket"},
		{"netns", "1", "cookie of the socket's network namespace; 0 is the daemon's own"},
		{"pod", "", "namespace/name of the socket's pod, instead of netns, such as shop/web-1"},
		{"incoming", "true", "the remote side connects"},
	}},
	{method: "GET", path: "/v1/doctor", summary: "What this kernel allows tcpilot to do; tested again if the caller may change something", answer: api.Doctor{}},
	{method: "GET", path: "/v1/samples", summary: "Samples from now on, one JSON object a line, until the client leaves", answer: api.Sample{}, stream: true, query: []param{
		{"remote", "192.0.2.0/24", "only connections with a remote address in this prefix"},
		{"kind", "close", "only this kind: close, interval or failed-connect"},
		{"min_bytes", "1", "only samples with at least this many bytes acked and received together"},
	}},
	{method: "GET", path: "/v1/programs", summary: "Users' own sock_ops programs", answer: api.ProgramList{}},
	{method: "GET", path: "/v1/programs/{name}", summary: "One of the users' own sock_ops programs", answer: api.Loaded{}},
	{method: "GET", path: "/v1/cc", summary: "Congestion controls in BPF: tcpilot's own, and users'", answer: api.ControlList{}},
	{method: "GET", path: "/v1/cc/{name}", summary: "One congestion control in BPF", answer: api.CongestionControl{}},
	{method: "GET", path: "/v1/pods", summary: "Pods of this host, with the rules that match them", answer: api.PodList{}},
	{method: "POST", path: "/v1/pods/sync", summary: "Read the records of pods; the answer comes when the rules for them are in force", answer: api.PodSync{}, change: true},
	{method: "POST", path: "/v1/pods/detach", summary: "Give the packets of all pods back to the host's stack until the next reload", answer: struct{}{}, change: true},
	{method: "POST", path: "/v1/reload", summary: "Read the configuration again", answer: api.ReloadResult{}, change: true},
	{method: "POST", path: "/v1/detach", summary: "Undo everything, and end the daemon", answer: struct{}{}, change: true},
	{method: "POST", path: "/v1/rollout", summary: "Change the rollout of a rule until the next reload", body: api.RolloutRequest{}, answer: api.RuleRollout{}, change: true},
	{method: "POST", path: "/v1/programs", summary: "Attach a user's own sock_ops programs", body: api.LoadRequest{}, answer: api.Loaded{}, change: true},
	{method: "DELETE", path: "/v1/programs/{name}", summary: "Detach a user's own programs, by name", answer: struct{}{}, change: true},
	{method: "POST", path: "/v1/cc", summary: "Load one of tcpilot's own congestion controls, or a user's from a file", body: api.LoadControlRequest{}, answer: api.CongestionControl{}, change: true},
	{method: "DELETE", path: "/v1/cc/{name}", summary: "Unload a congestion control from the kernel", answer: api.Unloaded{}, change: true},
}

// object is a JSON object.
type object = map[string]any

// openAPI is the document of all routes.
func openAPI(t *testing.T) []byte {
	t.Helper()
	c := &components{schemas: object{}, types: map[string]reflect.Type{}, comments: fieldComments(t)}
	paths := map[string]object{}
	for _, r := range routes {
		if paths[r.path] == nil {
			paths[r.path] = object{}
		}
		paths[r.path][strings.ToLower(r.method)] = c.operation(r)
	}
	text, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{"title": "tcpilot", "version": "v1",
			"description": "The API of the tcpilot daemon: HTTP on two unix sockets. Generated by go test ./internal/api -update."},
		"servers":    []object{{"url": "http://tcpilot", "description": "/run/tcpilot/tcpilot.sock; read requests also on /run/tcpilot/tcpilot-read.sock"}},
		"paths":      paths,
		"components": object{"schemas": c.schemas},
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

func (c *components) operation(r route) object {
	kind := "application/json"
	if r.stream {
		kind = "application/x-ndjson"
	}
	content := func(kind string, v any) object { return object{kind: object{"schema": c.schema(reflect.TypeOf(v))}} }
	o := object{
		"summary": r.summary,
		"responses": object{
			"200":     object{"description": "done", "content": content(kind, r.answer)},
			"default": object{"description": "what went wrong, and what to do", "content": content("application/json", api.Error{})},
		},
	}
	var params []object
	for _, name := range wildcard.FindAllStringSubmatch(r.path, -1) {
		params = append(params, object{"name": name[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range r.query {
		params = append(params, object{"name": p.name, "in": "query", "description": p.meaning, "required": strings.HasSuffix(p.meaning, "; required"),
			"schema": object{"type": "string"}})
	}
	if params != nil {
		o["parameters"] = params
	}
	if r.body != nil {
		o["requestBody"] = object{"required": true, "content": content("application/json", r.body)}
	}
	if r.change {
		o["description"] = "For administrators only: root, the daemon's user, and members of socket.admins, by the administrators' socket."
	}
	return o
}

var wildcard = regexp.MustCompile(`\{(\w+)\}`)

// components collects the schemas of named types.
type components struct {
	schemas  object
	types    map[string]reflect.Type // by name in schemas
	comments map[string]string       // by type and field
}

var textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()

func (c *components) schema(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return c.schema(t.Elem())
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "format": "int64", "description": "nanoseconds"}
	case t.Implements(textMarshaler):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": c.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": c.schema(t.Elem())}
	case reflect.Struct:
		if t.Name() == "" {
			return c.structure(t)
		}
		return object{"$ref": "#/components/schemas/" + c.name(t)}
	}
	panic("no schema for " + t.String())
}

// name adds a type to the schemas and returns its name there.
func (c *components) name(t reflect.Type) string {
	name := t.Name()
	if other, taken := c.types[name]; taken && other != t {
		name = strings.ReplaceAll(t.String(), ".", "_")
	}
	if _, known := c.types[name]; !known {
		c.types[name] = t
		c.schemas[name] = c.structure(t)
	}
	return name
}

func (c *components) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	c.fields(t, properties, &required)
	s := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// fields adds the fields of t, as encoding/json writes them.
func (c *components) fields(t reflect.Type, properties object, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "":
			c.fields(f.Type, properties, required)
			continue
		case name == "":
			name = f.Name
		}
		s := c.schema(f.Type)
		left := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		switch kind := f.Type.Kind(); {
		case left:
		case kind == reflect.Slice || kind == reflect.Map || kind == reflect.Pointer:
			s = object{"anyOf": []object{s, {"type": "null"}}}
		}
		if !left {
			*required = append(*required, name)
		}
		text := c.comments[t.String()+"."+f.Name]
		if doc := f.Tag.Get("doc"); doc != "" { // of tcp.Sample
			text = strings.TrimPrefix(f.Tag.Get("unit")+": "+doc, ": ")
		}
		if text != "" {
			s["description"] = text
		}
		properties[name] = s
	}
}

// fieldComments has the comments of struct fields of the packages whose types the API
// shows, by package.Type.Field.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pkg := range []string{"api", "engine", "learn", "metrics", "tcp"} {
		for _, file := range parseDir(t, filepath.Join("..", pkg)) {
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				st, ok := spec.Type.(*ast.StructType)
				if !ok {
					return false
				}
				for _, f := range st.Fields.List {
					text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
					for _, name := range f.Names {
						all[pkg+"."+spec.Name.Name+"."+name.Name] = text
					}
				}
				return false
			})
		}
	}
	return all
}

// parseDir parses the files of a package that are not tests.
func parseDir(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// apiPage is docs/api.md.
func apiPage() []byte {
	var b bytes.Buffer
	b.WriteString(apiPageHead)
	for _, change := range []bool{false, true} {
		if change {
			b.WriteString("\n## Change\n\nFor root, the daemon's user, and members of `socket.admins`, through the administrators' socket only.\n")
		} else {
			b.WriteString("\n## Read\n")
		}
		b.WriteString("\n| request | what | body | answer |\n|---|---|---|---|\n")
		for _, r := range routes {
			if r.change == change {
				fmt.Fprintf(&b, "| `%s %s` | %s | %s | %s |\n", r.method, r.path, r.summary, typeWord(r.body), typeWord(r.answer))
			}
		}
	}
	b.WriteString("\n## Parameters\n\nA parameter that is not listed is an error.\n")
	for _, r := range routes {
		if len(r.query) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n`%s`\n\n| parameter | meaning |\n|---|---|\n", r.path)
		for _, p := range r.query {
			fmt.Fprintf(&b, "| `%s` | %s |\n", p.name, p.meaning)
		}
	}
	return b.Bytes()
}

// typeWord is the name of a type in the document's schemas.
func typeWord(v any) string {
	if v == nil {
		return ""
	}
	if name := reflect.TypeOf(v).Name(); name != "" {
		return name
	}
	return "`{}`"
}

const apiPageHead = `<!-- Generated by go test ./internal/api -update: do not edit. -->
# API

The daemon answers HTTP with JSON on two unix sockets: ` + "`/run/tcpilot/tcpilot.sock`" + ` for administrators, and
` + "`/run/tcpilot/tcpilot-read.sock`" + `, through which nobody can change anything ([security.md](security.md#who-may-call-what)). The command line uses
nothing else: with ` + "`--json`" + ` a command writes the API's answer.

` + "```" + `
curl --unix-socket /run/tcpilot/tcpilot.sock http://tcpilot/v1/status
curl --unix-socket /run/tcpilot/tcpilot.sock 'http://tcpilot/v1/explain?remote=192.0.2.7&remote_port=443'
curl --unix-socket /run/tcpilot/tcpilot.sock -N 'http://tcpilot/v1/samples?kind=close'
curl --unix-socket /run/tcpilot/tcpilot.sock -X POST http://tcpilot/v1/reload
curl --unix-socket /run/tcpilot/tcpilot.sock -X POST -d '{"rule": "web", "share": 0.1}' http://tcpilot/v1/rollout
` + "```" + `

[openapi.json](openapi.json) describes every document and field (OpenAPI 3.1). Within ` + "`v1`" + ` fields are added, never removed or changed: ignore those that you
do not know. Durations are integers in nanoseconds if the name ends in ` + "`_ns`" + `; times are RFC 3339.

An error has a status of 400 or above and the document ` + "`{\"error\": \"what failed\", \"hint\": \"what to do\"}`" + `: 400 a malformed request, 403 not allowed, 404 no such
thing, 409 a conflict with the present state, 413 a body that is too long, 422 a file or request that is not valid, 503 not available now, or not on this kernel, 504 it took too long.
`

var update = flag.Bool("update", false, "write docs/api.md and docs/openapi.json again")

func TestAPIPagesAreUpToDate(t *testing.T) {
	for name, text := range map[string][]byte{"api.md": apiPage(), "openapi.json": openAPI(t)} {
		file := filepath.Join("..", "..", "docs", name)
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(have, text) {
			t.Errorf("%s is stale (%v): go test ./internal/api -update", file, err)
		}
	}
}
