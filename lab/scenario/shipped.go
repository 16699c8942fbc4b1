package scenario

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

//go:embed files/*.yaml
var files embed.FS

// Names lists the shipped scenarios.
func Names() []string {
	entries, err := files.ReadDir("files")
	if err != nil {
		panic(err) // cannot fail: the directory is embedded
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Source is the file of a shipped scenario.
func Source(name string) ([]byte, error) {
	data, err := files.ReadFile("files/" + name + ".yaml")
	if err != nil {
		what := "there are " + strings.Join(Names(), ", ")
		if near := yamlfile.Nearest(name, Names()); near != "" {
			what = fmt.Sprintf("did you mean %q?", near)
		}
		return nil, fmt.Errorf("no scenario %q; %s", name, what)
	}
	return data, nil
}

// Load reads a shipped scenario, or the file at a path: a name with a slash, or
// one that ends in .yaml.
func Load(nameOrPath string, o Options) (*Scenario, error) {
	if ext := filepath.Ext(nameOrPath); strings.ContainsRune(nameOrPath, '/') || ext == ".yaml" || ext == ".yml" {
		data, err := os.ReadFile(nameOrPath)
		if err != nil {
			return nil, fmt.Errorf("read scenario: %w", err)
		}
		return Read(nameOrPath, data, o)
	}
	data, err := Source(nameOrPath)
	if err != nil {
		return nil, err
	}
	return Read(nameOrPath+".yaml", data, o)
}
