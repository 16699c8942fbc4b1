package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// exportedAnyway are exported names that no other package mentions, each with its reason.
var exportedAnyway = map[string]string{
	"daemon.Daemon":        "its exported methods are those of api.Backend",
	"estimate.MarshalText": "encoding/json calls it",
	"learn.MarshalText":    "encoding/json calls it",
	"tcp.MarshalText":      "encoding/json calls it",
}

// source is one file of Go.
type source struct {
	pkg    string // as in mayImport
	test   bool
	parsed *ast.File
}

func sources(t *testing.T) (all []source) {
	t.Helper()
	for _, file := range files(t) {
		if !strings.HasSuffix(file, ".go") || strings.Contains(file, "testdata/") {
			continue
		}
		text := read(t, file)
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		test := strings.HasSuffix(file, "_test.go")
		if test && strings.HasSuffix(parsed.Name.Name, "_test") {
			continue // the package's own tests, from outside
		}
		if !test && isGenerated(text) {
			continue
		}
		all = append(all, source{strings.TrimPrefix(path.Dir(file), "internal/"), test, parsed})
	}
	return all
}

// exported lists the exported functions, methods of exported types, constants, variables and
// types of a file. Constants of an exported type are left out, because a list of values is
// exported as a whole.
func exported(f *ast.File) (names []string) {
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				names = append(names, id.Name)
			}
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiver(d)) {
				add(d.Name)
			}
		case *ast.GenDecl:
			value := "" // type of a constant, which those below it inherit
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					if id, ok := s.Type.(*ast.Ident); ok {
						value = id.Name
					} else if len(s.Values) > 0 {
						value = ""
					}
					if d.Tok != token.CONST || !ast.IsExported(value) {
						add(s.Names...)
					}
				case *ast.TypeSpec:
					add(s.Name)
				}
			}
		}
	}
	return names
}

// receiver is the name of the type that a method belongs to.
func receiver(d *ast.FuncDecl) (name string) {
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return name == ""
	})
	return name
}

// signatures adds the names of the types that exported declarations of a file mention: another
// package can use such a type without its name.
func signatures(f *ast.File, mentioned map[string]bool) {
	add := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				mentioned[id.Name] = true
			}
			return true
		})
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				add(d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					if s.Names[0].IsExported() {
						add(s)
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						add(s.Type)
					}
				}
			}
		}
	}
}

// A name is exported only if another package mentions it. Names are compared without their
// packages and types, so one that is also the name of something else is not found.
func TestExportedNamesAreUsed(t *testing.T) {
	all := sources(t)
	mentions := make(map[string]map[string]bool) // by name: the packages
	types := make(map[string]map[string]bool)    // by package
	for _, s := range all {
		if types[s.pkg] == nil {
			types[s.pkg] = make(map[string]bool)
		}
		signatures(s.parsed, types[s.pkg])
		ast.Inspect(s.parsed, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if mentions[sel.Sel.Name] == nil {
					mentions[sel.Sel.Name] = make(map[string]bool)
				}
				mentions[sel.Sel.Name][s.pkg] = true
			}
			return true
		})
	}
	found := make(map[string]bool)
	for _, s := range all {
		if s.test || within(s.pkg, "cmd") || within(s.pkg, "test") {
			continue
		}
		for _, name := range exported(s.parsed) {
			used := types[s.pkg][name]
			for pkg := range mentions[name] {
				used = used || pkg != s.pkg
			}
			full := s.pkg + "." + name
			if used {
				continue
			}
			found[full] = true
			if exportedAnyway[full] == "" {
				t.Errorf("%s is exported, but no other package mentions it", full)
			}
		}
	}
	for full := range exportedAnyway {
		if !found[full] {
			t.Errorf("%s is not such a name (any more)", full)
		}
	}
}
