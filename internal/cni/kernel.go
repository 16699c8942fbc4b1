package cni

import (
	"net/netip"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/podnet"
)

// kernel is what the plugin asks of the kernel.
type kernel interface {
	Cookie(netns string) (uint64, error)
	Find(netns, name string) (pod.Link, error)
	Has(pod.Device) error
	CheckFree(netns, name, hostName string) error
	Make(*podnet.Pair) (podnet.Made, error)
	Check(*podnet.Pair, pod.Link) error
	Remove(hostName string) error
	MTU(v4, v6 bool) (int, error)
	Forward(v4, v6 bool) (changed []string, err error)
	Masquerade(network, device string, except []netip.Prefix) error
	Unmasquerade(network string, devices ...string) error
	CheckMasquerade(network, device string, except []netip.Prefix) error
	Masqueraded(network string) (devices []string, err error)
}

// linux is the running kernel.
type linux struct{}

func (linux) Cookie(path string) (uint64, error)       { return netns.Cookie(path) }
func (linux) Find(path, name string) (pod.Link, error) { return podnet.Find(path, name) }
func (linux) Has(d pod.Device) error                   { return poddevice.Has(d) }
func (linux) CheckFree(path, name, hostName string) error {
	return podnet.CheckFree(path, name, hostName)
}
func (linux) Make(p *podnet.Pair) (podnet.Made, error)          { return podnet.Make(p) }
func (linux) Check(p *podnet.Pair, made pod.Link) error         { return podnet.Check(p, made) }
func (linux) Remove(hostName string) error                      { return podnet.Remove(hostName) }
func (linux) MTU(v4, v6 bool) (int, error)                      { return podnet.MTU(v4, v6) }
func (linux) Forward(v4, v6 bool) (changed []string, err error) { return podnet.Forward(v4, v6) }
func (linux) Masqueraded(network string) ([]string, error)      { return podnet.Masqueraded(network) }

func (linux) Masquerade(network, device string, except []netip.Prefix) error {
	return podnet.Masquerade(network, device, except)
}

func (linux) CheckMasquerade(network, device string, except []netip.Prefix) error {
	return podnet.CheckMasquerade(network, device, except)
}

func (linux) Unmasquerade(network string, devices ...string) error {
	return podnet.Unmasquerade(network, devices...)
}
