package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A congestion control is described by three types: what is known of it by its name, its code and
// state in the kernel, and what the API shows.
func TestTypesOfACongestionControl(t *testing.T) {
	want := []string{"api.CongestionControl", "cc.Control", "congestion.Control"}
	var have []string
	for _, file := range files(t) {
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() && describesControl(spec) {
				have = append(have, parsed.Name.Name+"."+spec.Name.Name)
			}
			return true
		})
	}
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("the types %q describe a congestion control, want %q", have, want)
	}
}

// describesControl reports whether a struct has the catalogue's row, or names one congestion control and
// says whether it needs ECN or in which state it is.
func describesControl(spec *ast.TypeSpec) bool {
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return false
	}
	names, says := strings.Contains(spec.Name.Name, "Control"), false
	for _, f := range st.Fields.List {
		typ, _ := f.Type.(*ast.SelectorExpr)
		if typ != nil && typ.Sel.Name == "Control" && len(f.Names) == 0 {
			return true
		}
		for _, name := range f.Names {
			names = names || name.Name == "CC" && typ != nil && typ.Sel.Name == "CC"
			says = says || slices.Contains([]string{"NeedsECN", "State", "Failures"}, name.Name)
		}
	}
	return names && says
}
