package cniconf

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func networks(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// mainNode is a node without a network plugin, with the plugins of the CNI project.
func mainNode(t *testing.T, files map[string]string) (n Node, program string) {
	t.Helper()
	n, program = node(t, files)
	put(t, filepath.Join(n.BinDir, "host-local"), "")
	put(t, filepath.Join(n.BinDir, "portmap"), "")
	return n, program
}

func TestInstallMain(t *testing.T) {
	n, program := mainNode(t, nil)
	n.ConfDir = filepath.Join(n.ConfDir, "made") // as on a node where nothing is installed yet
	file := filepath.Join(n.ConfDir, "10-tcpilot.conflist")
	m := Main{networks("10.1.0.0/24", "fd00:1::/64"), networks("10.1.0.0/16", "fd00:1::/48")}
	did, warning, err := n.InstallMain(program, m)
	if err != nil || warning != "" || !slices.Equal(did, []string{"installed " + n.Program(), "wrote " + file + ", with tcpilot-cni as the main plugin and addresses of 10.1.0.0/24 and fd00:1::/64"}) {
		t.Fatalf("%q, %q, %v", did, warning, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	text := get(t, file)
	var got struct {
		CNIVersion  string
		CNIVersions []string
		Name        string
		Plugins     []struct {
			Type, Dir    string
			IPMasq       bool
			IPMasqExcept []string
			IPAM         struct {
				Type   string
				Ranges [][]struct{ Subnet string }
			}
			Capabilities map[string]bool
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err, text)
	}
	p := got.Plugins[0]
	if got.CNIVersion != "1.0.0" || got.Name != "tcpilot" || len(got.Plugins) != 2 || p.Type != Type || p.Dir != n.Records || !p.IPMasq || !slices.Equal(p.IPMasqExcept, []string{"10.1.0.0/16", "fd00:1::/48"}) ||
		p.IPAM.Type != "host-local" || len(p.IPAM.Ranges) != 2 || p.IPAM.Ranges[1][0].Subnet != "fd00:1::/64" || len(p.Capabilities) != 3 ||
		got.Plugins[1].Type != "portmap" || !got.Plugins[1].Capabilities["portMappings"] {
		t.Errorf("%+v", got)
	}
	c, err := parse([]byte(text))
	if err == nil {
		err = errors.Join(c.checkVersions(), n.checkPrograms(&c))
	}
	if err != nil {
		t.Error(err)
	}
	put(t, filepath.Join(n.ConfDir, "200-loopback.conf"), `{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}`) // of CRI-O
	put(t, filepath.Join(n.ConfDir, "99-loopback.conflist"), loopback)
	if did, _, err := n.InstallMain(program, m); err != nil || did != nil {
		t.Errorf("again: %q, %v", did, err)
	}
	m.Cluster = nil
	if did, warning, err := n.InstallMain(program, m); err != nil || len(did) != 1 || !strings.Contains(warning, "--cluster-cidr") || strings.Contains(get(t, file), "ipMasqExcept") {
		t.Errorf("another one: %q, %q, %v", did, warning, err)
	}
	if _, _, err := n.Uninstall(false); err == nil || !strings.Contains(err.Error(), "remove it with --main") {
		t.Errorf("uninstall: %v", err)
	}
	for _, want := range [][]string{{"removed " + file}, nil} {
		if did, err := n.UninstallMain(); err != nil || !slices.Equal(did, want) {
			t.Errorf("%q, %v", did, err)
		}
	}
	put(t, file, `{"cniVersion": "1.0.0", "name": "mine", "plugins": [{"type": "bridge"}]}`)
	if did, err := n.UninstallMain(); err == nil || did != nil || !strings.Contains(err.Error(), "is not of 'tcpilot cni install --main'") {
		t.Errorf("somebody's file of this name: %q, %v", did, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if did, _, err := n.Uninstall(false); err != nil || !slices.Equal(did, []string{"removed " + n.uninstalled(), "removed " + n.Program()}) {
		t.Errorf("uninstall: %q, %v", did, err)
	}
	expectNoRemoval(t, n)
	if left, _ := os.ReadDir(n.ConfDir); len(left) != 2 { // those with loopback
		t.Errorf("left %v", left)
	}
}

func TestInstallMainRefuses(t *testing.T) {
	fine := Main{PodCIDRs: networks("10.1.0.0/24")}
	for what, c := range map[string]struct {
		files  map[string]string
		m      Main
		change func(Node) error
		want   string
	}{
		"another plugin":     {map[string]string{"20.conflist": flannel}, fine, nil, "20.conflist is the configuration of another network plugin"},
		"no JSON":            {map[string]string{"05.conf": "{"}, fine, nil, "05.conf is the configuration of another network plugin"},
		"no networks":        {nil, Main{}, nil, "not known"},
		"twice a family":     {nil, Main{PodCIDRs: networks("10.1.0.0/24", "10.2.0.0/24")}, nil, "are of the same family"},
		"too small":          {nil, Main{PodCIDRs: networks("10.1.0.0/31")}, nil, "cannot be the network"},
		"everything":         {nil, Main{PodCIDRs: networks("::/0")}, nil, "cannot be the network"},
		"an address":         {nil, Main{PodCIDRs: networks("10.1.0.7/24")}, nil, "cannot be the network"},
		"without portmap":    {nil, fine, func(n Node) error { return os.Remove(filepath.Join(n.BinDir, "portmap")) }, "the program portmap is not in"},
		"without host-local": {nil, fine, func(n Node) error { return os.Remove(filepath.Join(n.BinDir, "host-local")) }, "the program host-local is not in"},
	} {
		n, program := mainNode(t, c.files)
		if c.change != nil {
			if err := c.change(n); err != nil {
				t.Fatal(err)
			}
		}
		did, _, err := n.InstallMain(program, c.m)
		if err == nil || did != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %q", what, did, err, c.want)
		}
		if _, err := os.Stat(n.Program()); err == nil {
			t.Errorf("%s: the program was installed", what)
		}
		if _, err := os.Stat(filepath.Join(n.ConfDir, mainFile)); err == nil {
			t.Errorf("%s: the file was written", what)
		}
	}
}
