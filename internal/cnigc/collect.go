package cnigc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/tcpilot/tcpilot/internal/cnispec"
	"github.com/tcpilot/tcpilot/internal/host"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

// Node is where a node has what is read, and what is executed.
type Node struct {
	ConfDir  string        // of network configurations, /etc/cni/net.d
	BinDir   string        // of plugins, /opt/cni/bin
	CacheDir string        // of the library libcni, in which runtimes keep the configuration of each ADD, and its result
	Records  podrecord.Dir // of tcpilot-cni
	// OlderThan is the age from which on an attachment is looked at.
	OlderThan time.Duration
	DryRun    bool // execute nothing
	Stderr    io.Writer
}

// Attachment is a pod's interface as it was added.
type Attachment struct {
	Container string
	Interface string
	Network   string
	Pod       string
	NetNS     string
	Addresses []string
	Why       string // it is gone, or why that is not certain
	Removed   bool
	Error     string
}

// Report is what a collection found.
type Report struct {
	Gone    []Attachment
	Unclear []Attachment // kept, because it is not certain that they are gone
	Kept    int          // attachments of pods that exist
	Leases  []Lease      // addresses that nothing known has
}

// delLimit bounds the DEL of one attachment by all plugins.
const delLimit = time.Minute

// Collect executes DEL for each attachment that is gone, and calls done after each. It goes on after errors, which are in
// the report. A plugin that removed a part is repeated by the next collection.
func (n Node) Collect(ctx context.Context, done func(Attachment)) (r Report, err error) {
	c := &collection{Node: n, library: libcni.NewCNIConfigWithCacheDir([]string{n.BinDir}, n.CacheDir, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: n.Stderr}})}
	list, err := host.NewNetNSList()
	if err != nil {
		return r, err
	}
	defer list.Close()
	if c.namespaces, _, err = list.Poll(); err != nil {
		return r, err
	}
	if err := c.readAttachments(); err != nil {
		return r, err
	}
	r = Report{Gone: []Attachment{}, Unclear: []Attachment{}, Leases: []Lease{}}
	for _, a := range c.attachments {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		switch v := c.judge(a); {
		case v.gone:
			one := c.collect(ctx, a, v)
			r.Gone = append(r.Gone, one)
			done(one)
		case v.why != "":
			r.Unclear = append(r.Unclear, a.describe(v.why))
		default:
			r.Kept++
		}
	}
	r.Leases = c.unknownLeases()
	return r, nil
}

// collection is one call of Collect.
type collection struct {
	Node
	library     *libcni.CNIConfig
	namespaces  []host.NetNS // that are found without the records
	attachments []*attachment
}

// attachment is one that was added, by its record or by what the runtime's library has kept.
type attachment struct {
	pod.Pod
	conf    []byte              // network configuration of its ADD; nil: not known
	runtime *libcni.RuntimeConf // of its ADD
}

func (a *attachment) describe(why string) Attachment {
	d := Attachment{Container: a.Container, Interface: a.Interface, Network: a.Network, NetNS: a.NetNS, Why: why}
	if a.Name != "" {
		d.Pod = a.FullName()
	}
	for _, address := range a.Addresses {
		d.Addresses = append(d.Addresses, address.Addr().String())
	}
	return d
}

// collect executes DEL of an attachment that is gone.
func (c *collection) collect(ctx context.Context, a *attachment, v verdict) Attachment {
	d := a.describe(v.why)
	if c.DryRun {
		return d
	}
	ctx, cancel := context.WithTimeout(ctx, delLimit)
	defer cancel()
	if err := c.del(ctx, a); err != nil {
		d.Error = err.Error()
		return d
	}
	d.Removed = true
	return d
}

// del executes DEL of all plugins of the attachment's network, the last one first, with the configuration of its ADD if
// that is known. The plugins take their own locks: tcpilot-cni waits for an IPAM plugin that still runs for the attachment.
func (c *collection) del(ctx context.Context, a *attachment) error {
	list, err := c.configOf(a)
	if err != nil {
		return err
	}
	// Container runtimes never use an id again; by hand that is possible.
	if v := c.again(a); !v.gone {
		return errors.New("it was added again meanwhile")
	}
	if err := c.library.DelNetworkList(ctx, list, a.runtime); err != nil {
		return err
	}
	if _, err := c.Records.Get(a.Key()); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("DEL of network %s has left its record in %s: %w", a.Network, c.Records, err)
	}
	return nil
}

// configOf is the configuration of the attachment's network.
func (c *collection) configOf(a *attachment) (list *libcni.NetworkConfigList, err error) {
	if a.conf != nil {
		list, err = libcni.NetworkConfFromBytes(a.conf)
	} else {
		list, err = libcni.LoadNetworkConf(c.ConfDir, a.Network)
	}
	if err != nil {
		return nil, fmt.Errorf("find the configuration of network %s, in %s and in %s: %w", a.Network, c.CacheDir, c.ConfDir, err)
	}
	at := slices.IndexFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == cnispec.Plugin })
	switch {
	case at < 0:
		return nil, fmt.Errorf("the configuration of network %s in %s does not have %s: put the one with which the pod started there", a.Network, c.ConfDir, cnispec.Plugin)
	case a.Made && list.Plugins[at].Network.IPAM.Type == "":
		return nil, fmt.Errorf("the configuration of network %s in %s has no ipam for %s, so that the pod's address would stay allocated: put the one with which the pod started there", a.Network, c.ConfDir, cnispec.Plugin)
	}
	return list, nil
}
