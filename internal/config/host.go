package config

import (
	"maps"
	"slices"
	"strconv"

	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// HostSysctls are values of sysctls, by name.
type HostSysctls map[string]string

// hostSysctl is a sysctl of network namespaces that the host profile may set.
type hostSysctl struct {
	Name string
	Most uint64 // greatest value
	Doc  string
}

// hostSysctlSpecs lists all of them. New network namespaces inherit none of them from the initial one
// (tcp_sk_init in net/ipv4/tcp_ipv4.c).
var hostSysctlSpecs = []hostSysctl{
	{"net.ipv4.tcp_comp_sack_delay_ns", 100_000_000, "SACKs of packets out of order wait this long for more, in nanoseconds, but at most a twentieth of the round-trip time; the kernel's value is 1000000"},
	{"net.ipv4.tcp_comp_sack_slack_ns", 100_000_000, "by how much later the timer may expire, so that it wakes the CPU less often; the kernel's value is 100000"},
	{"net.ipv4.tcp_comp_sack_nr", 255, "SACKs that are saved at most before one is sent; 0 turns their compression off; the kernel's value is 44"},
	{"net.ipv4.tcp_comp_sack_rtt_percent", 1000, "the share of the round-trip time that SACKs wait at most, in percent, on kernels that have it"},
	{"net.ipv4.tcp_backlog_ack_defer", 1, "1: one ACK for all packets that arrived while the application held the socket; the kernel's value is 1 (Linux 6.7 and later)"},
	{"net.ipv4.tcp_notsent_lowat", 1<<32 - 1, "unsent bytes above which a socket is not writable, of sockets without a value of their own; the kernel's is 4294967295"},
}

func hostSysctlNames() (names []string) {
	for _, s := range hostSysctlSpecs {
		names = append(names, s.Name)
	}
	return names
}

// hostSysctls decodes values of sysctls, by name.
func (d *decoder) hostSysctls(n *yamlfile.Node, values *HostSysctls) {
	if d.Want(n, yamlfile.Mapping) && len(n.Entries) == 0 {
		d.Fail(n.Place, "no sysctl is named", "write such as {net.ipv4.tcp_comp_sack_nr: 0}, or remove the key")
	}
	*values = make(HostSysctls, len(n.Entries))
	for _, e := range n.Entries {
		i := slices.Index(hostSysctlNames(), e.Key)
		if i < 0 {
			d.Unknown(e.At, "sysctl", e.Key, hostSysctlNames(), "see docs/host-profile.md for those that can be set")
			continue
		}
		text, ok := d.text(e.Value)
		if !ok {
			continue
		}
		v, err := ParseCount(text, "a whole number")
		if most := hostSysctlSpecs[i].Most; err == nil && v > most {
			err = bad("write 0 to "+strconv.FormatUint(most, 10), "%s is out of range", text)
		}
		if err != nil {
			d.Wrong(e.Value, err)
			continue
		}
		(*values)[e.Key] = strconv.FormatUint(v, 10)
	}
}

// hostSysctlSchema is the schema of HostSysctls.
func hostSysctlSchema() schema {
	properties := schema{}
	for _, s := range hostSysctlSpecs {
		properties[s.Name] = schema{"type": "integer", "minimum": 0, "maximum": s.Most, "description": s.Doc}
	}
	return schema{"type": "object", "additionalProperties": false, "minProperties": 1, "properties": properties}
}

// Names lists the sysctls, sorted.
func (h HostSysctls) Names() []string { return slices.Sorted(maps.Keys(h)) }
