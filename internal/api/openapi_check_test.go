package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/api/apitest"
)

// handled lists the routes of Server.Handler, each with whether it is for administrators
// only, and the parameters that each of the functions parse... takes.
func handled(t *testing.T) (found map[string]bool, params map[string][]string) {
	t.Helper()
	found, params = map[string]bool{}, map[string][]string{}
	files := parseDir(t, ".")
	paths := map[string]string{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == 1 && len(spec.Values) == 1 {
				if text, ok := constant(spec.Values[0], nil); ok {
					paths[spec.Names[0].Name] = text
				}
			}
			return true
		})
	}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				text, ok := constant(call.Args[0], paths)
				if !ok {
					return true
				}
				switch what := calls(call.Fun); {
				case fn.Name.Name == "Handler" && (what == "mux.HandleFunc" || what == "change"):
					found[text] = what == "change"
				case strings.HasPrefix(fn.Name.Name, "parse") && slices.Contains([]string{"q.take", "q.uint", "q.addr", "q.prefix", "q.bool"}, what):
					params[fn.Name.Name] = append(params[fn.Name.Name], text)
				}
				return true
			})
		}
	}
	delete(found, "/") // what no route is for
	return found, params
}

// constant is the text of a literal, of one of names, or of a sum of these.
func constant(e ast.Expr, names map[string]string) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		text, ok := names[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		x, okX := constant(e.X, names)
		y, okY := constant(e.Y, names)
		return x + y, okX && okY && e.Op == token.ADD
	}
	return "", false
}

// calls is a called function's name: f, or x.f.
func calls(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return calls(e.X) + "." + e.Sel.Name
	}
	return ""
}

func TestRoutesAreThoseOfTheHandlers(t *testing.T) {
	found, params := handled(t)
	documented := map[string]bool{}
	query := map[string][]string{}
	for _, r := range routes {
		documented[r.method+" "+r.path] = r.change
		for _, p := range r.query {
			query[r.path] = append(query[r.path], p.name)
		}
	}
	if !maps.Equal(found, documented) {
		t.Errorf("the handlers have\n%v\nthe documentation has\n%v", found, documented)
	}
	for parser, path := range map[string]string{"parsePathQuery": "/v1/paths", "parseExplain": "/v1/explain", "parseSampleFilter": "/v1/samples"} {
		have, want := slices.Sorted(slices.Values(params[parser])), slices.Sorted(slices.Values(query[path]))
		if !slices.Equal(have, want) {
			t.Errorf("%s takes %v, documented are %v", path, have, want)
		}
		delete(query, path)
	}
	if len(query) > 0 {
		t.Errorf("nothing parses %v", query)
	}
}

// bodies are requests that the fake daemon grants.
var bodies = map[string]any{
	"/v1/rollout":  api.RolloutRequest{Rule: "default", Share: 0.1},
	"/v1/programs": api.LoadRequest{Name: "my-iw", File: "/opt/my_iw.bpf.o", Cgroup: "/sys/fs/cgroup/web"},
	"/v1/cc":       api.LoadControlRequest{Name: "mine", File: "/opt/mine.bpf.o"},
}

func request(t *testing.T, r route) *http.Request {
	t.Helper()
	name := "mine"
	if strings.Contains(r.path, "/programs") {
		name = "my-iw"
	}
	values := url.Values{}
	for _, p := range r.query {
		if p.example != "" {
			values.Set(p.name, p.example)
		}
	}
	var body io.Reader = http.NoBody
	if r.body != nil {
		text, err := json.Marshal(bodies[r.path])
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(text)
	}
	q, err := http.NewRequestWithContext(t.Context(), r.method, "http://tcpilot"+strings.Replace(r.path, "{name}", name, 1)+"?"+values.Encode(), body)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// Somebody whom the server does not know may do all that is not for administrators.
func TestChangesAreForAdministrators(t *testing.T) {
	h := api.NewServer(apitest.New(), -1, slog.New(slog.DiscardHandler)).Handler(t.Context())
	for _, r := range routes {
		if r.stream {
			continue
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t, r))
		if refused := w.Code == http.StatusForbidden; refused != r.change {
			t.Errorf("%s %s: status %d to a user without permission", r.method, r.path, w.Code)
		}
	}
}

// Every answer has the fields that the document gives its type, and no others.
func TestAnswersFitTheDocument(t *testing.T) {
	f := apitest.New()
	f.Feed = 5
	f.AddPods()
	socket := apitest.Serve(t, f)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI(t)))
	if err != nil {
		t.Fatal(err)
	}
	closed(document)
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("openapi.json", document); err != nil {
		t.Fatal(err)
	}
	pointer := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	for _, r := range routes {
		kind := "application~1json"
		if r.stream {
			kind = "application~1x-ndjson"
		}
		schema, err := compiler.Compile(fmt.Sprintf("openapi.json#/paths/%s/%s/responses/200/content/%s/schema",
			pointer.Replace(r.path), strings.ToLower(r.method), kind))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request(t, r))
		if err != nil {
			t.Fatal(err)
		}
		var v any // of a stream its first line
		d := json.NewDecoder(answer.Body)
		d.UseNumber()
		if err := d.Decode(&v); err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %s, %v", r.method, r.path, answer.Status, err)
		}
		answer.Body.Close()
		if err := schema.Validate(v); err != nil {
			t.Errorf("%s %s: %v", r.method, r.path, err)
		}
	}
}

// closed makes objects refuse what their schema does not name.
func closed(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			closed(e)
		}
	case object:
		for _, e := range v {
			closed(e)
		}
		if _, has := v["properties"]; has && v["type"] == "object" {
			v["additionalProperties"] = false
		}
	}
}
