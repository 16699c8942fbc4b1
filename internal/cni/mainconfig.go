package cni

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tcpilot/tcpilot/internal/podnet"
)

// deviceAnnotation is the annotation by which a pod chooses the device that is made for it.
const deviceAnnotation = "tcpilot.io/device"

// mainConfig is the part of the network configuration by which the main plugin makes an interface.
type mainConfig struct {
	Device     string    `json:"device"`
	MTU        int       `json:"mtu"`
	Masquerade bool      `json:"ipMasq"`
	Except     []string  `json:"ipMasqExcept"`
	DNS        types.DNS `json:"dns"`

	modes  []podnet.Mode  // Device
	except []netip.Prefix // Except
}

// devices are the values of device and of deviceAnnotation. Netkit does less for each packet than veth;
// without Ethernet headers it needs no neighbour entries either.
var devices = map[string][]podnet.Mode{
	"auto":      {podnet.Netkit, podnet.Veth},
	"veth":      {podnet.Veth},
	"netkit":    {podnet.Netkit},
	"netkit-l2": {podnet.NetkitL2},
}

const (
	minMTU4 = 68    // bytes: RFC 791
	minMTU6 = 1280  // bytes: RFC 8200, section 5
	maxMTU  = 65535 // bytes: ETH_MAX_MTU
)

// mainConfig reads the keys of the main plugin; an annotation of the pod may replace device.
func (r *request) mainConfig(annotations map[string]string) (*mainConfig, error) {
	var m mainConfig
	if err := decode(r.input, "", &m); err != nil {
		return nil, err
	}
	if _, err := r.ipamPlugin(); err != nil {
		return nil, err
	}
	where, device := "the network configuration's device", m.Device
	if a, set := annotations[deviceAnnotation]; set {
		where, device = "the pod's annotation "+deviceAnnotation, a
	} else if device == "" {
		device = "auto"
	}
	if m.modes = devices[device]; m.modes == nil {
		return nil, fail(codeConfig, "%s is %.32q: it must be one of %s", where, device, strings.Join(slices.Sorted(maps.Keys(devices)), ", "))
	}
	if m.MTU != 0 && (m.MTU < minMTU4 || m.MTU > maxMTU) {
		return nil, fail(codeConfig, "the network configuration's mtu is %d: it must be from %d to %d, or 0 for that of the default route's device", m.MTU, minMTU4, maxMTU)
	}
	for _, text := range m.Except {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fail(codeConfig, "the network configuration's ipMasqExcept has %.64q: it must be a network such as 10.0.0.0/8", text)
		}
		m.except = append(m.except, p)
	}
	if m.Masquerade && len(r.Network) > maxMasqueraded {
		return nil, fail(codeConfig, "the network configuration's name has %d bytes: with ipMasq, at most %d are possible", len(r.Network), maxMasqueraded)
	}
	return &m, nil
}

// maxMasqueraded is the longest name of a network, in bytes, that fits into the name of an nftables table after its
// prefix (NFT_NAME_MAXLEN is 256).
const maxMasqueraded = 200

// ipamPlugin is the name of the program that gives addresses. Of the main plugin's keys, DEL needs only this one.
func (c *config) ipamPlugin() (string, error) {
	var ipam struct {
		Type string `json:"type"`
	}
	if err := decode(c.IPAM, "ipam", &ipam); err != nil {
		return "", err
	}
	if ipam.Type == "" || strings.ContainsRune(ipam.Type, '/') {
		return "", fail(codeConfig, "the network configuration's ipam.type is %.64q: it must be the name of a plugin such as host-local", ipam.Type)
	}
	return ipam.Type, nil
}
