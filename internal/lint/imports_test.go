package lint

import (
	"cmp"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport is the table of the architecture: for each package below internal/, and of
// lab/, the others that it may import. "*" is any of internal/. Only daemon imports both core
// and edge, and nothing of the product imports the lab. docs/ARCHITECTURE.md has the same
// table, with what each package is.
var mayImport = map[string][]string{
	// core: no I/O
	"tcp":        {},
	"path":       {"tcp"},
	"class":      {},
	"learn":      {"tcp", "path", "congestion"},
	"learn/sim":  {"tcp", "learn"},
	"policy":     {"tcp", "path", "class", "learn", "estimate", "congestion", "pod"},
	"congestion": {"tcp"},
	"guard":      {"tcp", "learn"},
	"estimate":   {"tcp"},
	"buffers":    {"tcp"},
	"limit":      {},
	"pod":        {},
	"engine":     {"tcp", "path", "class", "learn", "policy", "guard", "estimate", "congestion", "pod"},

	// edge: the kernel, the disk
	"bigtcp":    {"netns", "pod", "poddevice", "rtnetlink", "sysctl"},
	"datapath":  {"tcp", "path", "class", "congestion", "jiffies", "limit", "netns", "progstats", "regular", "rtnetlink"},
	"cc":        {"tcp", "congestion", "jiffies", "kernelcc", "netns", "progstats", "regular", "rtnetlink"},
	"cni":       {"cniconf", "cnispec", "defaults", "netns", "pod", "poddevice", "podnet", "podrecord", "undo", "yamlfile"},
	"cniconf":   {"cnispec", "defaults", "filelock", "podrecord", "regular"},
	"cnigc":     {"cnispec", "host", "netns", "pod", "podrecord", "rtnetlink"},
	"cnispec":   {},
	"cgroup":    {},
	"filelock":  {},
	"host":      {"netns", "routes", "sysctl"},
	"jiffies":   {},
	"kernelcc":  {"sysctl"},
	"kubeapi":   {"pod", "regular", "yamlfile"},
	"rtnetlink": {},
	"routes":    {"rtnetlink"},
	"tcpinfo":   {},
	"progstats": {},
	"netns":     {"thread"},
	"poddevice": {"netns", "pod", "rtnetlink"},
	"podnet":    {"netns", "pod", "sysctl", "undo"},
	"podlink":   {"jiffies", "netns", "pod", "rtnetlink"},
	"podrecord": {"filelock", "pod", "regular", "sysctl"},
	"regular":   {},
	"store":     {"filelock", "sysctl"},
	"sysctl":    {},
	"thread":    {},
	"undo":      {},
	"record":    {"tcp"},

	// face
	"config":     {"tcp", "path", "class", "learn", "policy", "congestion", "defaults", "pod", "yamlfile"},
	"config/gen": {"config"},
	"ociimage":   {},
	"yamlfile":   {},
	"metrics":    {"congestion", "engine", "httpserver"},
	"api":        {"tcp", "congestion", "engine", "httpserver", "metrics"},
	"httpserver": {},
	"console":    {},
	"defaults":   {},
	"cli":        {"tcp", "api", "config", "console", "engine", "metrics", "record", "yamlfile"},
	"daemon":     {"*"},

	// for tests
	"testenv": {"cgroup", "netns", "sysctl"},
	"lint":    {},

	// the lab
	"lab/topology":   {"cgroup", "filelock", "kernelcc", "netns", "sysctl", "thread", "undo"},
	"lab/link":       {"console", "lab/topology", "netns"},
	"lab/measure":    {},
	"lab/load":       {},
	"lab/workload":   {"console", "lab/load", "lab/measure", "lab/topology", "tcpinfo"},
	"lab/subject":    {"congestion", "kernelcc", "lab/topology", "pod", "poddevice", "podlink", "sysctl", "undo", "yamlfile"},
	"lab/scenario":   {"config", "console", "lab/link", "lab/measure", "lab/subject", "lab/topology", "lab/workload", "yamlfile"},
	"lab/calibrate":  {"console", "lab/link", "lab/topology"},
	"lab/report":     {"console", "lab/measure"},
	"lab/experiment": {"lab/calibrate", "lab/link", "lab/load", "lab/report", "lab/scenario", "lab/subject", "lab/topology", "lab/workload", "undo"},
	"lab/vm":         {},
	"lab/demo":       {"console", "lab/link", "lab/load", "lab/topology", "undo"},
	"lab/cli":        {"console", "lab/experiment", "lab/link", "lab/report", "lab/scenario"},
}

// openToLab names the packages below internal/ that the lab may import, and why. All else of
// the product it uses as a user does: it starts the program tcpilot. docs/ARCHITECTURE.md has the same table.
var openToLab = map[string]string{
	"config":     "a scenario may contain a part of tcpilot's configuration; units are written alike in both",
	"congestion": "the names of congestion controls, Linux's and tcpilot's own",
	"yamlfile":   "scenarios are read as strictly as the configuration",
	"console":    "both command lines print, report errors and exit alike",
	"cgroup":     "where the cgroup2 hierarchy is",
	"kernelcc":   "which congestion controls the kernel has",
	"tcpinfo":    "which fields of tcp_info the kernel has",
	"netns":      "to enter network namespaces",
	"sysctl":     "to read and write sysctls",
	"filelock":   "locks against other runs",
	"thread":     "threads that end in a foreign namespace",
	"pod":        "the names of devices for pods",
	"podlink":    "whether the kernel can route packets of pods",
	"poddevice":  "which devices for pods the kernel has",
	"undo":       "steps to undo",
}

// onlyIn names the packages that may import a module or a part of the standard
// library, apart from tests.
var onlyIn = map[string][]string{
	"github.com/vishvananda/netlink":          {"testenv", "podnet", "routes", "lab/topology", "lab/link", "lab/workload"},
	"github.com/vishvananda/netns":            {"testenv", "podnet", "lab/topology"},
	"github.com/cilium/ebpf":                  {"datapath", "cc", "podlink", "progstats", "testenv", "lab/link", "lab/subject"},
	"github.com/goccy/go-yaml":                {"yamlfile"},
	"github.com/spf13/cobra":                  {"cli", "console", "lab/cli"},
	"github.com/prometheus/client_golang":     {"metrics"},
	"github.com/stretchr/testify":             {},
	"gonum.org/v1/gonum":                      {},
	"github.com/moby/sys/mountinfo":           {"cgroup", "host", "testenv", "lab/topology"},
	"golang.org/x/exp":                        {},
	"github.com/containernetworking/cni":      {"cni", "cnigc", "lab/subject"},
	"github.com/google/nftables":              {"podnet"},
	"math/rand":                               {},
	"text/template":                           {}, // it finds methods by name, so that the linker has to keep those of all types: 3 MB
	"html/template":                           {"lab/report"},
	"github.com/tcpilot/tcpilot/internal/cli": {"cmd/tcpilot"},
}

// pure packages take time, randomness and I/O as arguments.
var (
	pure      = []string{"tcp", "path", "class", "congestion", "learn", "learn/sim", "limit", "pod", "policy", "guard", "estimate", "buffers", "engine"}
	notInPure = []string{"os", "net", "net/http", "syscall", "golang.org/x/sys/unix", "crypto/rand", "math/rand", "log", "io/fs"}
)

// imported is one import of a file that is not a test.
type imported struct{ pkg, file, path string }

// imports lists the imports of all packages. A package is named by its directory, relative to
// internal/ if it is there.
func imports(t *testing.T) []imported {
	t.Helper()
	var all []imported
	for _, file := range files(t) {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		pkg := strings.TrimPrefix(path.Dir(file), "internal/")
		for _, spec := range parsed.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, imported{pkg, file, name})
		}
	}
	return all
}

func within(name, prefix string) bool {
	return name == prefix || strings.HasPrefix(name, prefix+"/")
}

func TestImportGraph(t *testing.T) {
	for _, im := range imports(t) {
		target, ours := strings.CutPrefix(im.path, module+"/")
		if !ours || strings.HasPrefix(im.pkg, "cmd/") {
			continue
		}
		target = strings.TrimPrefix(target, "internal/")
		allowed := mayImport[im.pkg]
		if tested := path.Dir(im.pkg); strings.HasSuffix(im.pkg, "test") && within(target, tested) {
			continue // api/apitest is part of api's tests
		} else if strings.HasSuffix(im.pkg, "test") {
			allowed = append(slices.Clone(mayImport[tested]), "path")
		}
		if target == "testenv" {
			t.Errorf("%s imports testenv, which is for tests only", im.file)
		} else if !slices.Contains(allowed, target) && (within(target, "lab") || !slices.Contains(allowed, "*")) {
			t.Errorf("%s: package %s may not import %s (it may: %s)", im.file, im.pkg, target, strings.Join(allowed, " "))
		}
	}
}

// The lab imports only those packages of the product that openToLab names.
func TestOpenToLab(t *testing.T) {
	used := make(map[string]bool)
	for _, im := range imports(t) {
		target, ours := strings.CutPrefix(im.path, module+"/internal/")
		if !ours || !within(im.pkg, "lab") && im.pkg != "cmd/tcpilot-lab" {
			continue
		}
		used[target] = true
		if openToLab[target] == "" {
			t.Errorf("%s imports %s, which is not open to the lab", im.file, target)
		}
	}
	rows := make(map[string]string)
	_, section, _ := strings.Cut(read(t, "docs/ARCHITECTURE.md"), "| open to the lab |")
	section, _, _ = strings.Cut(section, "\n\n")
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (.*) \\|$").FindAllStringSubmatch(section, -1) {
		rows[row[1]] = row[2]
	}
	if !maps.Equal(rows, openToLab) {
		t.Errorf("docs/ARCHITECTURE.md has for the lab %v, want %v", rows, openToLab)
	}
	for pkg := range openToLab {
		if !used[pkg] {
			t.Errorf("%s is open to the lab, which does not import it", pkg)
		}
	}
}

func TestEveryPackageIsInTheTable(t *testing.T) {
	for pkg := range packages(t) {
		if _, ok := mayImport[pkg]; !ok && !strings.HasSuffix(pkg, "test") && !within(pkg, "cmd") && !within(pkg, "test") {
			t.Errorf("package %s is not in the table of imports: add it, and to docs/ARCHITECTURE.md", pkg)
		}
	}
}

// The drawings of docs/ARCHITECTURE.md show every package, those of the lab in that of the lab.
func TestDrawingsShowEveryPackage(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "docs/ARCHITECTURE.md"), "## Packages")
	blocks := strings.Split(section, "```")
	for pkg := range mayImport {
		drawing, name := blocks[1], pkg
		if rest, ok := strings.CutPrefix(pkg, "lab/"); ok {
			drawing, name = blocks[3], rest
		}
		if !regexp.MustCompile(`(^|[\s/])` + regexp.QuoteMeta(name) + `($|[\s,:;])`).MatchString(drawing) {
			t.Errorf("package %s is in no drawing of docs/ARCHITECTURE.md", pkg)
		}
	}
}

// Each arrow of these drawings is an import.
func TestArrowsOfDrawings(t *testing.T) {
	used := make(map[[2]string]bool)
	for _, im := range imports(t) {
		if target, ours := strings.CutPrefix(im.path, module+"/"); ours {
			used[[2]string{im.pkg, strings.TrimPrefix(target, "internal/")}] = true
		}
	}
	_, section, found := strings.Cut(read(t, "docs/ARCHITECTURE.md"), "## Packages")
	if !found {
		t.Fatal("docs/ARCHITECTURE.md has no drawings of packages")
	}
	for i, block := range strings.Split(section, "```")[:4] {
		all := arrows(block)
		if i%2 == 1 && len(all) < 10 {
			t.Errorf("a drawing of docs/ARCHITECTURE.md has the arrows %q only", all)
		}
		for _, a := range all {
			for j, name := range a {
				if _, ok := mayImport["lab/"+name]; ok && i == 3 {
					a[j] = "lab/" + name
				}
			}
			if !used[a] && !strings.HasPrefix(a[1], "bpf/") {
				t.Errorf("docs/ARCHITECTURE.md draws an arrow from %q to %q, which is no import", a[0], a[1])
			}
		}
	}
}

// arrows lists the arrows of a drawing. An arrow begins at the name to its left, or at that above its branch,
// and ends at the names to its right, which are separated by commas and end with two spaces.
func arrows(drawing string) (all [][2]string) {
	var rows [][]rune
	for row := range strings.Lines(drawing) {
		rows = append(rows, []rune(strings.TrimRight(row, "\n")))
	}
	at := func(y, x int) rune {
		if y < 0 || x < 0 || x >= len(rows[y]) {
			return ' '
		}
		return rows[y][x]
	}
	isName := func(r rune) bool { return r < 0x80 && r != ' ' }
	for y, row := range rows {
		for head, r := range row {
			if r != '▶' {
				continue
			}
			fromY, x := y, head-1
			for strings.ContainsRune("─┬", at(y, x)) {
				x--
			}
			if strings.ContainsRune("├└", at(y, x)) {
				for fromY--; strings.ContainsRune("│├", at(fromY, x)); fromY-- {
				}
			}
			for fromY >= 0 && x > 0 && !isName(at(fromY, x)) {
				x--
			}
			begin, end := x, x
			for isName(at(fromY, begin-1)) {
				begin--
			}
			for isName(at(fromY, end)) {
				end++
			}
			from := ""
			if fromY >= 0 {
				from = string(rows[fromY][begin:end])
			}
			list, _, _ := strings.Cut(string(row[head+1:]), "  ")
			list, _, _ = strings.Cut(list, " ─")
			list, _, _ = strings.Cut(list, " (")
			for _, to := range strings.Split(list, ",") {
				all = append(all, [2]string{from, strings.TrimSpace(to)})
			}
		}
	}
	return all
}

// The table of docs/ARCHITECTURE.md is mayImport, one row for each package.
func TestArchitectureTable(t *testing.T) {
	rows := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9/]*[a-z0-9])` \\| [^|]* \\| ([^|]*) \\|$").FindAllStringSubmatch(read(t, "docs/ARCHITECTURE.md"), -1) {
		if _, twice := rows[row[1]]; twice {
			t.Errorf("docs/ARCHITECTURE.md has two rows for %s", row[1])
		}
		rows[row[1]] = row[2]
	}
	for pkg, allowed := range mayImport {
		want := cmp.Or(strings.Join(allowed, " "), "std")
		if slices.Contains(allowed, "*") {
			want = "all but the lab"
		}
		if got, ok := rows[pkg]; !ok {
			t.Errorf("docs/ARCHITECTURE.md has no row for %s (may import: %s)", pkg, want)
		} else if got != want {
			t.Errorf("docs/ARCHITECTURE.md: %s may import %q, want %q", pkg, got, want)
		}
		delete(rows, pkg)
	}
	for pkg := range rows {
		t.Errorf("docs/ARCHITECTURE.md has a row for %s, which is not in the table of imports", pkg)
	}
}

// The table allows nothing that no file uses.
func TestImportTableIsUsed(t *testing.T) {
	used := make(map[string][]string)
	for _, im := range imports(t) {
		if target, ours := strings.CutPrefix(im.path, module+"/"); ours {
			used[im.pkg] = append(used[im.pkg], strings.TrimPrefix(target, "internal/"))
		}
	}
	for pkg, allowed := range mayImport {
		for _, target := range allowed {
			if target != "*" && !slices.Contains(used[pkg], target) {
				t.Errorf("%s may import %s, and does not: remove it from the table", pkg, target)
			}
		}
	}
}

func TestOwnersOfModules(t *testing.T) {
	for _, im := range imports(t) {
		for module, owners := range onlyIn {
			if within(im.path, module) && !slices.Contains(owners, im.pkg) && !(module == "math/rand" && im.path == "math/rand/v2") {
				t.Errorf("%s imports %s, which only %q may", im.file, im.path, owners)
			}
		}
	}
}

func TestCoreIsPure(t *testing.T) {
	for _, im := range imports(t) {
		if slices.Contains(pure, im.pkg) && slices.Contains(notInPure, im.path) {
			t.Errorf("%s: package %s is core, which takes as an argument what %s would give", im.file, im.pkg, im.path)
		}
	}
}
