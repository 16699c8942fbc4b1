package lint

import (
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// commented is a package, and the comments on it in all of its files.
type commented struct {
	name     string // main, for a command
	sources  int    // files that are not tests
	comments map[string]string
}

// packages lists the packages by directory, without internal/.
func packages(t *testing.T) map[string]*commented {
	t.Helper()
	all := make(map[string]*commented)
	for _, file := range files(t) {
		dir := strings.TrimPrefix(path.Dir(file), "internal/")
		if !strings.HasSuffix(file, ".go") || strings.Contains(dir, "testdata") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		p := all[dir]
		if p == nil {
			p = &commented{comments: make(map[string]string)}
			all[dir] = p
		}
		p.name = strings.TrimSuffix(parsed.Name.Name, "_test")
		if !strings.HasSuffix(file, "_test.go") {
			p.sources++
		}
		if doc := strings.Join(strings.Fields(parsed.Doc.Text()), " "); doc != "" {
			p.comments[path.Base(file)] = doc
		}
	}
	return all
}

// A package has one comment: in doc.go, or in its only file. A second one elsewhere would
// be shown with it.
func TestPackageDocs(t *testing.T) {
	for dir, p := range packages(t) {
		if len(p.comments) != 1 {
			t.Errorf("package %s has comments in the files %q, want one, in doc.go", dir, slices.Sorted(maps.Keys(p.comments)))
		}
		for file, doc := range p.comments {
			if p.name == "main" {
				if want := "Command " + path.Base(dir) + " "; !strings.HasPrefix(doc, want) {
					t.Errorf("%s/%s: its comment does not begin with %q", dir, file, want)
				}
				continue
			}
			checkDoc(t, dir+"/"+file, p, doc)
			if file != "doc.go" && p.sources > 1 {
				t.Errorf("%s/%s: the comment on the package belongs in doc.go", dir, file)
			}
		}
	}
}

func checkDoc(t *testing.T, file string, p *commented, doc string) {
	t.Helper()
	if want := "Package " + p.name + " "; !strings.HasPrefix(doc, want) {
		t.Errorf("%s: its comment does not begin with %q", file, want)
	}
	if strings.Contains(doc, "It imports ") {
		t.Errorf("%s: what it imports is for the table of imports to say", file)
	}
	if !strings.Contains(doc, "refuses ") {
		t.Errorf("%s: its comment does not say what the package refuses", file)
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

// CI runs the README's commands before it installs anything of its own, because a new user's machine
// has none of that.
func TestCIBeginsWithTheReadme(t *testing.T) {
	run := read(t, ".ci/run")
	last := 0
	for _, step := range []string{"\ntools/try-run\n", "\nmake -s demo\n", "\nmake -s test ", "\nmake -s deps\n", "\nmake -s test-fresh\n"} {
		at := strings.Index(run, step)
		if at < last {
			t.Errorf(".ci/run: %q is not there, or not in this order", strings.TrimSpace(step))
		}
		last = max(last, at)
	}
	if at := regexp.MustCompile(`(?m)^[^#\n]*(apt-get|tools/deps)`).FindString(run); at != "" {
		t.Errorf(".ci/run: %q: only make deps installs anything", at)
	}
}

// The recipes of CONTRIBUTING.md name files that exist, and as many as they say.
func TestRecipes(t *testing.T) {
	recipes := regexp.MustCompile(`(?m)^\*\*A ([a-z ]+)\.\*\* (\w+) files, [^\n]*\n\n((?:\d\. .*\n)+)`).FindAllStringSubmatch(read(t, "CONTRIBUTING.md"), -1)
	numbers := []string{"No", "One", "Two", "Three", "Four", "Five", "Six"}
	most := map[string]int{"field of the sample": 6, "congestion control": 4, "metric": 2}
	for _, r := range recipes {
		name, says, steps := r[1], slices.Index(numbers, r[2]), strings.Split(strings.TrimSpace(r[3]), "\n")
		if limit, known := most[name]; !known || says > limit || says != len(steps) {
			t.Errorf("a %s: %s files, %d in the list, at most %d", name, r[2], len(steps), limit)
		}
		delete(most, name)
		for _, step := range steps {
			_, file, _ := strings.Cut(step, "`")
			file, _, _ = strings.Cut(file, "`")
			if all, err := filepath.Glob(filepath.Join(root, strings.ReplaceAll(file, "NAME", "*"))); err != nil || len(all) == 0 {
				t.Errorf("a %s: there is no %s", name, file)
			}
		}
	}
	if len(most) > 0 {
		t.Errorf("no recipe for %v", slices.Sorted(maps.Keys(most)))
	}
}
