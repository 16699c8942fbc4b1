package cniconf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The plugin is added only to lists of which a runtime cannot choose a version that it does not support.
func TestInstallChecksTheVersion(t *testing.T) {
	for keys, want := range map[string]string{
		``:                        "has no cniVersion, which container runtimes take as 0.1.0; tcpilot-cni supports 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0",
		`"CNIVersion": "1.0.0",`:  "has no cniVersion",
		`"cniVersion": "",`:       `has the cniVersion ""`,
		`"cniVersion": "0.2.0",`:  `has the cniVersion "0.2.0"; tcpilot-cni supports`,
		`"cniVersion": "1.2.0",`:  `has the cniVersion "1.2.0"`,
		`"cniVersion": 1,`:        "has the cniVersion 1, which is not a string",
		`"cniVersion": "0.3.0",`:  "",
		`"cniVersion": "1.1.0",`:  "",
		`"cniVersions": ["1.0"],`: "has no cniVersion",
		// A runtime that does not know cniVersions would take this one as 0.1.0.
		`"cniVersions": ["0.4.0", "1.0.0"],`:                                   "has no cniVersion",
		`"cniVersion": "0.2.0", "cniVersions": ["0.2.0", "1.0.0"],`:            `has the cniVersion "0.2.0"`,
		`"cniVersion": "1.0.0", "cniVersions": ["0.1.0", "0.4.0", "1.1.0"],`:   "",
		`"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.2.0"],`:            `has "1.2.0" in cniVersions`,
		`"cniVersion": "1.0.0", "cniVersions": "1.0.0",`:                       "has cniVersions that are not an array",
		`"cniVersion": "0.1.0", "cniVersions": [], "cniVersion": "1.0.0",`:     "",
		`"x": {"cniVersion": "1.0.0"}, "cniVersion": null, "cniVersions": [],`: `has the cniVersion ""`,
	} {
		text := fmt.Sprintf(`{%s "name": "n", "plugins": [{"type": "flannel"}]}`, keys)
		n, program := node(t, map[string]string{"10.conflist": text})
		did, _, err := n.Install(program)
		if want == "" {
			if err != nil || len(did) != 2 {
				t.Errorf("%s: %q, %v", keys, did, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "10.conflist "+want) {
			t.Errorf("%s: %v, want %q", keys, err, want)
		}
		refused(t, n, "10.conflist", text)
	}
}

// refused checks that nothing was changed.
func refused(t *testing.T, n Node, file, text string) {
	t.Helper()
	if _, err := os.Stat(n.Program()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: the program was installed: %v", text, err)
	}
	if got := get(t, filepath.Join(n.ConfDir, file)); got != text {
		t.Errorf("the file was changed to:\n%s", got)
	}
}

// The plugin is added only if its program is beside those of the other plugins, where the runtime looks.
func TestInstallChecksTheDirectoryOfPlugins(t *testing.T) {
	n, program := node(t, map[string]string{"10.conflist": flannel})
	right, portmap := n.BinDir, filepath.Join(n.BinDir, "portmap")
	for what, c := range map[string]struct {
		change func() error
		want   string
	}{
		"another directory": {func() error { n.BinDir = t.TempDir(); return nil }, "has the plugin flannel, whose program is not in "},
		"no directory":      {func() error { n.BinDir = filepath.Join(right, "missing"); return nil }, "has the plugin flannel, whose program is not in "},
		"no portmap":        {func() error { return os.Remove(portmap) }, "has the plugin portmap, whose program is not in " + right},
		"a directory":       {func() error { return errors.Join(os.Remove(portmap), os.Mkdir(portmap, 0o755)) }, "has the plugin portmap"},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := n.Install(program); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		refused(t, n, "10.conflist", flannel)
		n.BinDir = right
		if err := os.RemoveAll(portmap); err != nil {
			t.Fatal(err)
		}
		put(t, portmap, "")
	}
	// In a container, a link may lead out of what is mounted.
	if err := errors.Join(os.Remove(portmap), os.Symlink("/nowhere/portmap", portmap)); err != nil {
		t.Fatal(err)
	}
	if did, _, err := n.Install(program); err != nil || len(did) != 2 {
		t.Errorf("a link: %q, %v", did, err)
	}
}

// Where the list has the plugin already, pods need its program, whatever else is missing.
func TestInstallPutsTheProgramBack(t *testing.T) {
	n, program := node(t, map[string]string{"10.conflist": flannel})
	if _, _, err := n.Install(program); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(n.Program()), os.Remove(filepath.Join(n.BinDir, "portmap"))); err != nil {
		t.Fatal(err)
	}
	did, warning, err := n.Install(program)
	if err != nil || len(did) != 1 || !strings.Contains(warning, "has the plugin portmap, whose program is not in") {
		t.Errorf("%q, warning %q, %v", did, warning, err)
	}
}

// The plugin that limits the same pods is a warning, also if all is installed.
func TestInstallWarnsOfTheBandwidthPlugin(t *testing.T) {
	with := strings.Replace(flannel, `"type": "portmap",`, `"type": "bandwidth",`, 1)
	for text, warns := range map[string]bool{flannel: false, with: true} {
		n, program := node(t, map[string]string{"10.conflist": text})
		put(t, filepath.Join(n.BinDir, "bandwidth"), "")
		for _, changes := range []int{2, 0} {
			did, warning, err := n.Install(program)
			if err != nil || len(did) != changes || (warning != "") != warns || warns && !strings.Contains(warning, "10.conflist has the plugin bandwidth") {
				t.Errorf("%q, %q, %v", did, warning, err)
			}
		}
	}
}
