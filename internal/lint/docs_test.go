package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// packages maps the packages below internal/, and those of lab/, to their documentation.
func packages(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, file := range files(t) {
		dir, ok := strings.CutPrefix(path.Dir(file), "internal/")
		if !ok && !within(dir, "lab") || !strings.HasSuffix(file, ".go") || strings.Contains(dir, "testdata") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Name.Name == "main" {
			continue
		}
		if _, ok := all[dir]; !ok {
			all[dir] = ""
		}
		if path.Base(file) == "doc.go" {
			all[dir] = docOf(parsed)
		}
	}
	return all
}

func docOf(f *ast.File) string {
	return strings.Join(strings.Fields(f.Doc.Text()), " ")
}

func TestPackageDocs(t *testing.T) {
	for pkg, doc := range packages(t) {
		if doc == "" {
			t.Errorf("package %s has no doc.go with a comment", pkg)
			continue
		}
		if want := "Package " + path.Base(pkg) + " "; !strings.HasPrefix(doc, want) {
			t.Errorf("package %s: its comment does not begin with %q", pkg, want)
		}
		if strings.Contains(doc, "It imports ") {
			t.Errorf("package %s: what it imports is for the table of imports to say", pkg)
		}
		if !strings.Contains(doc, "refuses ") {
			t.Errorf("package %s: its comment does not say what it refuses", pkg)
		}
	}
}

// maxLines bounds a source file; 400 is the aim.
const maxLines = 500

func TestFileLength(t *testing.T) {
	for _, file := range files(t) {
		switch path.Ext(file) {
		case ".go", ".c", ".h":
		default:
			continue
		}
		text := read(t, file)
		if strings.HasSuffix(file, "_test.go") || isGenerated(text) {
			continue
		}
		if n := strings.Count(text, "\n"); n > maxLines {
			t.Errorf("%s has %d lines, at most %d: it is more than one thing", file, n, maxLines)
		}
	}
}

func TestReadme(t *testing.T) {
	const maxReadme = 100
	text := read(t, "README.md")
	if n := strings.Count(text, "\n"); n > maxReadme {
		t.Errorf("README.md has %d lines, at most %d", n, maxReadme)
	}
	// Before the second heading: a title, a few sentences, and the commands.
	opening := regexp.MustCompile("(?s)^# tcpilot\n\n([^#`\n][^#]*?)\n\n```[a-z]*\n(.*?)```\n").FindStringSubmatch(text)
	if opening == nil {
		t.Fatal("README.md does not begin with a title, a sentence, and a block of commands")
	}
	var commands []string
	for line := range strings.Lines(opening[2]) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			commands = append(commands, line)
		}
	}
	if len(commands) != 2 || !strings.HasPrefix(commands[0], "make") {
		t.Errorf("README.md begins with the commands %q, want two, make the first", commands)
	}
}
