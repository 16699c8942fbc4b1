package cnigc

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tcpilot/tcpilot/internal/cnispec"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// readAttachments reads the records, and the cache of the runtime's library. The cache has attachments of chained plugins whose record
// the daemon has removed.
func (c *collection) readAttachments() error {
	cached, err := c.library.GetCachedAttachments("")
	if err != nil {
		return fmt.Errorf("read the results of earlier ADDs: %w", err)
	}
	records, _, err := c.Records.List()
	if err != nil {
		return err
	}
	type key struct {
		network string
		pod.Key
	}
	known := make(map[key]*attachment)
	for i := range records {
		p := records[i].Pod
		a := &attachment{Pod: p, runtime: &libcni.RuntimeConf{ContainerID: p.Container, IfName: p.Interface,
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", p.UID}}}}
		known[key{p.Network, p.Key()}] = a
		c.attachments = append(c.attachments, a)
	}
	for _, one := range cached {
		k := key{one.Network, pod.Key{Container: one.ContainerID, Interface: one.IfName}}
		if k.Check() != nil || !hasPlugin(one.Config) {
			continue
		}
		a := known[k]
		if a == nil {
			a = &attachment{Pod: c.ofCache(one)}
			c.attachments = append(c.attachments, a)
		}
		a.conf = one.Config
		// Without the path: it may be that of another namespace by now.
		a.runtime = &libcni.RuntimeConf{ContainerID: one.ContainerID, IfName: one.IfName, Args: one.CniArgs, CapabilityArgs: one.CapabilityArgs}
	}
	return nil
}

// hasPlugin reports whether a network configuration has tcpilot-cni: others are left alone.
func hasPlugin(conf []byte) bool {
	list, err := libcni.NetworkConfFromBytes(conf)
	return err == nil && slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == cnispec.Plugin })
}

// ofCache is what the cache says of an attachment.
func (c *collection) ofCache(one *libcni.NetworkAttachment) pod.Pod {
	p := pod.Pod{Network: one.Network, Container: one.ContainerID, Interface: one.IfName, NetNS: one.NetNS, Added: time.Now()}
	for _, arg := range one.CniArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			p.Namespace = arg[1]
		case "K8S_POD_NAME":
			p.Name = arg[1]
		}
	}
	// The name is that of libcni (getCacheFilePath).
	if info, err := os.Stat(filepath.Join(c.CacheDir, "results", one.Network+"-"+one.ContainerID+"-"+one.IfName)); err == nil {
		p.Added = info.ModTime()
	}
	result, err := c.library.GetNetworkListCachedResult(&libcni.NetworkConfigList{Name: one.Network, CNIVersion: types100.ImplementedSpecVersion},
		&libcni.RuntimeConf{ContainerID: one.ContainerID, IfName: one.IfName})
	if err != nil || result == nil {
		return p
	}
	r, err := types100.GetResult(result)
	if err != nil {
		return p
	}
	for _, i := range r.Interfaces {
		if i.Name == one.IfName {
			p.NetNS = cmp.Or(p.NetNS, i.Sandbox) // caches of libraries before CNI 1.1 do not have the path elsewhere
		}
	}
	for _, ip := range r.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			a = a.Unmap()
			p.Addresses = append(p.Addresses, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return p
}

// Lease is an address that host-local keeps for a container of which neither tcpilot-cni nor the runtime's library knows anything.
type Lease struct {
	Network   string
	Address   string
	Container string
	File      string
}

const hostLocal = "host-local"

// unknownLeases lists the addresses of host-local, in the networks of the node that have tcpilot-cni, for which no attachment is
// known, and which no interface of a namespace has.
func (c *collection) unknownLeases() (list []Lease) {
	list = []Lease{}
	known := make(map[string]bool)
	for _, a := range c.attachments {
		known[a.Container] = true
	}
	var used map[netip.Addr]bool
	for dir, network := range c.leaseDirs() {
		files, _ := os.ReadDir(dir) // there is none before the first pod
		for _, f := range files {
			address, err := netip.ParseAddr(f.Name())
			if err != nil {
				continue // the lock, and the latest address of each range
			}
			file := filepath.Join(dir, f.Name())
			container, old := readLease(file, c.OlderThan)
			if container == "" || !old || known[container] {
				continue
			}
			if used == nil {
				used = c.addressesInUse()
			}
			if !used[address] {
				list = append(list, Lease{network, address.String(), container, file})
			}
		}
	}
	slices.SortFunc(list, func(a, b Lease) int { return cmp.Compare(a.File, b.File) })
	return list
}

// leaseDirs are the directories in which host-local keeps addresses of networks with tcpilot-cni, and these networks.
func (c *collection) leaseDirs() map[string]string {
	dirs := make(map[string]string)
	files, _ := libcni.ConfFiles(c.ConfDir, []string{".conflist"})
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !hasPlugin(text) {
			continue
		}
		list, err := libcni.NetworkConfFromBytes(text)
		if err != nil {
			continue
		}
		for _, p := range list.Plugins {
			var keys struct {
				IPAM struct {
					Type string `json:"type"`
					Dir  string `json:"dataDir"`
				} `json:"ipam"`
			}
			if json.Unmarshal(p.Bytes, &keys) == nil && keys.IPAM.Type == hostLocal {
				dirs[filepath.Join(cmp.Or(keys.IPAM.Dir, cnispec.HostLocalDir), list.Name)] = list.Name
			}
		}
	}
	return dirs
}

// readLease reads for which container an address is kept: the file's first line.
func readLease(file string, age time.Duration) (container string, old bool) {
	f, err := os.Open(file)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	if s := bufio.NewScanner(f); err == nil && s.Scan() {
		container = s.Text()
	}
	if pod.CheckContainer(container) != nil {
		return "", false
	}
	return container, time.Since(info.ModTime()).Abs() >= age // the clock may have been set back
}

// addressesInUse are the addresses in the network namespaces that were found.
func (c *collection) addressesInUse() map[netip.Addr]bool {
	used := make(map[netip.Addr]bool)
	for _, ns := range c.namespaces {
		err := ns.In(func() error {
			all, err := net.InterfaceAddrs()
			for _, a := range all {
				if p, err := netip.ParsePrefix(a.String()); err == nil {
					used[p.Addr().Unmap()] = true
				}
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(c.Stderr, "addresses in %s: %v\n", ns.Path, err)
		}
	}
	return used
}
