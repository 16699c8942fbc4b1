package pod

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Pod is one attachment of a pod's network namespace, as the runtime described it at ADD.
type Pod struct {
	Network   string `json:"network"`      // name of the network configuration: GC is for one network
	Container string `json:"container_id"` // CNI_CONTAINERID
	Interface string `json:"interface"`    // CNI_IFNAME
	NetNS     string `json:"netns"`        // CNI_NETNS: a path
	// Cookie is the namespace's cookie (SO_NETNS_COOKIE). Unlike the path it is never used again.
	Cookie      uint64            `json:"netns_cookie"`
	Namespace   string            `json:"namespace"` // K8S_POD_NAMESPACE of CNI_ARGS
	Name        string            `json:"name"`      // K8S_POD_NAME
	UID         string            `json:"uid,omitempty"`
	Cgroup      string            `json:"cgroup,omitempty"` // capability cgroupPath
	Annotations map[string]string `json:"annotations,omitempty"`
	Bandwidth   Bandwidth         `json:"bandwidth,omitzero"` // capability bandwidth
	// Made says that tcpilot-cni is the plugin that makes the interface, so that DEL and GC have to
	// remove it. Link is zero until the interface is made.
	Made bool `json:"made,omitempty"`
	// Masqueraded says that tcpilot-cni has also made the nftables rules that masquerade the pod.
	Masqueraded bool `json:"masqueraded,omitempty"`
	// MasqueradeExcept are the destinations that know the pod's address.
	MasqueradeExcept []netip.Prefix `json:"masquerade_except,omitempty"`
	// Chained says that a chained tcpilot-cni behind the one that made the interface has completed the record.
	Chained bool `json:"chained,omitempty"`
	Link
	Added time.Time `json:"added"`
	// Boot and Uptime are the same time as Added, by a clock that cannot be set: the id of the host's boot (kernel.random.boot_id), and the
	// time since then. Empty if it is not known.
	Boot   string        `json:"boot_id,omitempty"`
	Uptime time.Duration `json:"uptime_ns,omitempty"`
}

// Link is the pod's interface as it was at ADD. It is zero if there was none of that name.
type Link struct {
	Device Device `json:"device,omitempty"`
	Index  int    `json:"ifindex,omitempty"` // in the pod's network namespace
	// HostIndex is the index of the pair's other end in the host's network namespace; 0 if the
	// interface is not one of a pair, or the other end is in a third namespace. The kernel uses
	// indexes again: the device with HostIndex is the pod's only if its peer has Index and is in the
	// pod's namespace.
	HostIndex int            `json:"host_ifindex,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Device is a kind of interface, by the kernel's name (IFLA_INFO_KIND).
type Device string

// These are the kinds that have an end in the pod and one in the host's namespace. All others are
// recorded as OtherDevice.
const (
	Veth        Device = "veth"
	Netkit      Device = "netkit"
	OtherDevice Device = ""
)

func (l *Link) check() error {
	switch l.Device {
	case Veth, Netkit:
	case OtherDevice:
		if l.HostIndex != 0 {
			return errors.New("an interface that is not one of a pair cannot have an end on the host")
		}
	default:
		return fmt.Errorf("%.16q is not a kind of interface: veth, netkit, or nothing", l.Device)
	}
	if l.Index < 0 || l.HostIndex < 0 || l.HostIndex > 0 && l.Index == 0 {
		return fmt.Errorf("%d and %d cannot be the indexes of an interface and its end on the host", l.Index, l.HostIndex)
	}
	for _, a := range l.Addresses {
		if !a.IsValid() {
			return errors.New("an address is empty")
		}
	}
	return nil
}

// AddedAfter reports whether the pod was added later than another one: by the clock only if the time since the boot is not known.
func (p *Pod) AddedAfter(q *Pod) bool {
	if p.Boot != "" && p.Boot == q.Boot {
		return p.Uptime > q.Uptime
	}
	return p.Added.After(q.Added)
}

// Key identifies the pod's attachment.
func (p *Pod) Key() Key { return Key{p.Container, p.Interface} }

// maxName is the length in bytes of the longest name in Kubernetes (RFC 1123 subdomain).
const maxName = 253

// IsName reports whether a name of a pod, or of the namespace that it is in, can be shown in a
// terminal. It may be empty: a runtime without Kubernetes gives none.
func IsName(s string) bool {
	return len(s) <= maxName && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || !unicode.IsPrint(r) })
}

// Check returns what is wrong with the record.
func (p *Pod) Check() error {
	switch {
	case p.Cookie == 0:
		return errors.New("the cookie of the network namespace is missing")
	case !filepath.IsAbs(p.NetNS):
		return fmt.Errorf("%.40q is not the path of a network namespace", p.NetNS)
	case !IsName(p.Namespace):
		return fmt.Errorf("%.40q cannot be the namespace of a pod", p.Namespace)
	case !IsName(p.Name):
		return fmt.Errorf("%.40q cannot be the name of a pod", p.Name)
	}
	if err := p.Link.check(); err != nil {
		return err
	}
	return p.Key().Check()
}
