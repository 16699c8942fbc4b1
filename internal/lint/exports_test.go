package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gopackages "golang.org/x/tools/go/packages"
)

// exportedAnyway are exported names that no other package uses, each with its reason.
var exportedAnyway = map[string]string{
	"console.Silent.Unwrap":     "package errors calls it",
	"daemon.Daemon":             "its exported methods are those of api.Backend",
	"filelock.HeldError.Unwrap": "package errors calls it",
}

// source is one file of Go with its types.
type source struct {
	pkg     string // as in mayImport
	test    bool
	outside bool // a test of its package from outside
	parsed  *ast.File
	info    *types.Info
	fset    *token.FileSet
}

// load type-checks all packages, with their tests.
func load(t *testing.T) (all []source, loaded []*gopackages.Package) {
	t.Helper()
	loaded, err := gopackages.Load(&gopackages.Config{
		Dir: root, Tests: true,
		Mode: gopackages.NeedName | gopackages.NeedFiles | gopackages.NeedImports | gopackages.NeedTypes | gopackages.NeedSyntax | gopackages.NeedTypesInfo,
	}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loaded {
		for _, err := range p.Errors {
			t.Fatal(err)
		}
		pkg, ours := strings.CutPrefix(strings.TrimSuffix(p.PkgPath, "_test"), module+"/")
		if !ours {
			continue // the main package of tests
		}
		for _, f := range p.Syntax {
			test := strings.HasSuffix(p.Fset.File(f.FileStart).Name(), "_test.go")
			if !test && p.ID != p.PkgPath {
				continue // a variant of a package that is in the list itself
			}
			all = append(all, source{strings.TrimPrefix(pkg, "internal/"), test, strings.HasSuffix(p.PkgPath, "_test"), f, p.TypesInfo, p.Fset})
		}
	}
	return all, loaded
}

// place identifies an object by file, line and name. A package is type-checked again with its tests, which
// makes other objects, and the positions of imported objects have no columns.
func (s *source) place(o types.Object) string {
	at := s.fset.Position(o.Pos())
	return fmt.Sprintf("%s:%d: %s", at.Filename, at.Line, o.Name())
}

// export is an exported function, method, constant, variable or type.
type export struct {
	name   string
	place  string
	method *types.Func // nil for others
}

// exported lists what a file exports. Constants of an exported type are left out, because a list of
// values is exported as a whole.
func (s *source) exported() (list []export) {
	add := func(of string, ids ...*ast.Ident) {
		for _, id := range ids {
			o := s.info.Defs[id]
			if !id.IsExported() || o == nil {
				continue
			}
			e := export{name: s.pkg + "." + of + id.Name, place: s.place(o)}
			if of != "" {
				e.method = o.(*types.Func)
			}
			list = append(list, e)
		}
	}
	for _, decl := range s.parsed.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add("", d.Name)
			} else if r := receiver(s.info.Defs[d.Name].(*types.Func)); r.Exported() {
				add(r.Name()+".", d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch v := spec.(type) {
				case *ast.ValueSpec:
					named, ok := s.info.Defs[v.Names[0]].Type().(*types.Named)
					if d.Tok != token.CONST || !ok || !named.Obj().Exported() {
						add("", v.Names...)
					}
				case *ast.TypeSpec:
					add("", v.Name)
				}
			}
		}
	}
	return list
}

// receiver is the type that a method belongs to.
func receiver(m *types.Func) *types.TypeName {
	typ := m.Signature().Recv().Type()
	if p, ok := typ.(*types.Pointer); ok {
		typ = p.Elem()
	}
	return types.Unalias(typ).(*types.Named).Obj()
}

// inSignatures lists what the exported declarations of a file mention: another package can use such a
// type without its name.
func (s *source) inSignatures() (places []string) {
	add := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && s.info.Uses[id] != nil {
				places = append(places, s.place(s.info.Uses[id]))
			}
			return true
		})
	}
	for _, decl := range s.parsed.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				add(d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch v := spec.(type) {
				case *ast.ValueSpec:
					if v.Names[0].IsExported() {
						add(v)
					}
				case *ast.TypeSpec:
					if v.Name.IsExported() {
						add(v.Type)
					}
				}
			}
		}
	}
	return places
}

// origin is the declaration of a function, method or variable of a generic type.
func origin(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin()
	case *types.Var:
		return o.Origin()
	}
	return o
}

// interfaces lists the interfaces with methods that the packages know, by the names of their methods.
func interfaces(loaded []*gopackages.Package) map[string][]*types.Interface {
	all := make(map[string][]*types.Interface)
	seen := make(map[types.Object]bool)
	add := func(o types.Object) {
		name, ok := o.(*types.TypeName)
		if !ok || seen[o] {
			return
		}
		seen[o] = true
		if i, ok := name.Type().Underlying().(*types.Interface); ok {
			for m := range i.Methods() {
				all[m.Name()] = append(all[m.Name()], i)
			}
		}
	}
	add(types.Universe.Lookup("error"))
	for _, p := range loaded {
		for _, imported := range append(p.Types.Imports(), p.Types) {
			for _, name := range imported.Scope().Names() {
				add(imported.Scope().Lookup(name))
			}
		}
		for _, tv := range p.TypesInfo.Types {
			if i, ok := tv.Type.(*types.Interface); ok && tv.IsType() { // a literal
				for m := range i.Methods() {
					all[m.Name()] = append(all[m.Name()], i)
				}
			}
		}
	}
	return all
}

// implements reports whether a method is called through an interface.
func implements(m *types.Func, known map[string][]*types.Interface) bool {
	typ := receiver(m).Type()
	return slices.ContainsFunc(known[m.Name()], func(i *types.Interface) bool {
		return types.Implements(typ, i) || types.Implements(types.NewPointer(typ), i)
	})
}

// A name is exported only if another package uses it, or if it is a method that is called through an interface.
func TestExportedNamesAreUsed(t *testing.T) {
	all, loaded := load(t)
	known := interfaces(loaded)
	used := make(map[string]bool) // by place
	for _, s := range all {
		for _, place := range s.inSignatures() {
			used[place] = true
		}
		here := filepath.Dir(s.fset.File(s.parsed.FileStart).Name())
		for _, o := range s.info.Uses {
			if o = origin(o); o.Pos().IsValid() && (s.outside || filepath.Dir(s.fset.Position(o.Pos()).Filename) != here) {
				used[s.place(o)] = true
			}
		}
	}
	found := make(map[string]bool)
	for _, s := range all {
		if s.test || ast.IsGenerated(s.parsed) || within(s.pkg, "cmd") || within(s.pkg, "test") || within(s.pkg, "learn/sim") { // sim: for its own tests
			continue
		}
		for _, e := range s.exported() {
			if used[e.place] || e.method != nil && implements(e.method, known) {
				continue
			}
			found[e.name] = true
			if exportedAnyway[e.name] == "" {
				t.Errorf("%s is exported, but no other package uses it", e.name)
			}
		}
	}
	for name := range exportedAnyway {
		if !found[name] {
			t.Errorf("%s is used by another package, or not exported: remove it from exportedAnyway", name)
		}
	}
}
