package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podnet"
	"github.com/tcpilot/tcpilot/internal/undo"
)

// makeInterface is ADD of the main plugin. Before it returns an error, it undoes what it has done.
//
// The record is written before anything is made, and deleted after everything is undone. So DEL and
// GC find everything that a killed process has left.
func (r *request) makeInterface(p *pod.Pod) (result json.RawMessage, changed []string, err error) {
	m, err := r.mainConfig(p.Annotations)
	if err != nil {
		return nil, nil, err
	}
	// First, because an existing interface may be that of an earlier ADD, which must not be undone.
	if err := r.CheckFree(r.netns, r.key.Interface, podnet.HostName(r.key)); err != nil {
		return nil, nil, ofKernel(err)
	}
	var u undo.Stack
	var stuck error // why the pair could not be removed
	defer func() {
		if err == nil {
			return
		}
		undone := u.Run()
		if undone == nil { // otherwise DEL or GC needs it
			_, undone = r.Dir.Delete(r.key)
		}
		if undone != nil {
			f := asFailure(err)
			err = f.because("%s", strings.TrimPrefix(f.Details+"; undo: "+undone.Error(), "; "))
		}
	}()
	p.Made = true
	if err := r.Dir.Put(p); err != nil {
		return nil, changed, err
	}
	if err := r.refusesPods(); err != nil {
		return nil, changed, err
	}
	// Section 4: DEL also if ADD of the delegate fails.
	u.Push("", func() (err error) {
		if stuck == nil { // otherwise another pod could get the address
			_, err = r.ipam("DEL", r.key, r.netns)
		}
		return err
	})
	given, err := r.ipam("ADD", r.key, r.netns)
	if err != nil {
		return nil, changed, err
	}
	pair, err := r.pair(m, given)
	if err != nil {
		return nil, changed, err
	}
	if changed, err = r.Forward(pair.Families()); err != nil {
		return nil, changed, err
	}
	made, err := r.Make(pair)
	if !errors.Is(err, podnet.ErrExists) { // otherwise what is there is not of this ADD
		u.Push("", func() error { stuck = r.Remove(pair.HostName); return stuck })
	}
	if err != nil {
		return nil, changed, ofKernel(err)
	}
	if m.Masquerade {
		if err := r.Masquerade(r.Network, pair.HostName, m.except); err != nil {
			return nil, changed, err
		}
		u.Push("", func() error { return r.Unmasquerade(r.Network, pair.HostName) })
	}
	p.Link, p.Masqueraded = made.Link, m.Masquerade
	if m.Masquerade {
		p.MasqueradeExcept = m.except
	}
	if err := r.Dir.Put(p); err != nil {
		return nil, changed, err
	}
	result, err = r.madeResult(m, pair, &made, given)
	return result, changed, err
}

// ofKernel converts an error of podnet to one of this plugin.
func ofKernel(err error) error {
	switch {
	case errors.Is(err, podnet.ErrExists):
		return fail(codeExists, "%v", err)
	case errors.Is(err, podnet.ErrNoDevice):
		return fail(codeNoDevice, "%v", err).because("'tcpilot doctor' lists the devices that there are")
	}
	return err
}

// pair describes the interface to make, with the addresses that the IPAM plugin gave.
func (r *request) pair(m *mainConfig, given *types100.Result) (*podnet.Pair, error) {
	p := &podnet.Pair{NetNS: r.netns, Name: r.key.Interface, HostName: podnet.HostName(r.key), Modes: m.modes, MTU: m.MTU}
	for _, ip := range given.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fail(codeIO, "the IPAM plugin gave an address that is none: %q", ip.Address.IP)
		}
		p.Addresses = append(p.Addresses, a.Unmap())
	}
	v4, v6 := p.Families()
	if !v4 && !v6 {
		return nil, fail(codeIO, "the IPAM plugin gave no address")
	}
	for _, route := range given.Routes {
		dst, err := prefixOf(route.Dst)
		if err != nil {
			return nil, err
		}
		if dst.Addr().Is4() && !v4 || dst.Addr().Is6() && !v6 {
			continue // the pod has no address to send from
		}
		one := podnet.Route{Dst: dst, MTU: route.MTU, AdvMSS: route.AdvMSS, Priority: route.Priority}
		if route.Table != nil {
			one.Table = *route.Table
		}
		p.Routes = append(p.Routes, one)
	}
	if len(given.Routes) == 0 {
		for family, has := range map[string]bool{"0.0.0.0/0": v4, "::/0": v6} {
			if has {
				p.Routes = append(p.Routes, podnet.Route{Dst: netip.MustParsePrefix(family)})
			}
		}
		slices.SortFunc(p.Routes, func(a, b podnet.Route) int { return a.Dst.Addr().Compare(b.Dst.Addr()) })
	}
	if p.MTU == 0 {
		var err error
		if p.MTU, err = r.MTU(v4, v6); err != nil {
			return nil, err
		}
	}
	if v6 && p.MTU < minMTU6 {
		if m.MTU == 0 {
			return nil, fail(codeConfig, "the MTU of the default route's device is %d: IPv6 needs at least %d", p.MTU, minMTU6).
				because("the network configuration's mtu sets another one")
		}
		return nil, fail(codeConfig, "the network configuration's mtu is %d: IPv6 needs at least %d", p.MTU, minMTU6)
	}
	return p, nil
}

func prefixOf(n net.IPNet) (p netip.Prefix, err error) {
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if p = netip.PrefixFrom(a.Unmap(), ones).Masked(); !ok || bits == 0 || !p.IsValid() {
		return p, fail(codeIO, "the IPAM plugin gave a route to %v, which is no network", &n)
	}
	return p, nil
}

// madeResult is the result of ADD, complete for plugins behind this one such as portmap.
func (r *request) madeResult(m *mainConfig, pair *podnet.Pair, made *podnet.Made, given *types100.Result) (json.RawMessage, error) {
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: pair.HostName, Mac: macText(made.HostMAC), Mtu: pair.MTU},
			{Name: pair.Name, Mac: macText(made.MAC), Mtu: pair.MTU, Sandbox: r.netns},
		},
		DNS: given.DNS,
	}
	if !m.DNS.IsEmpty() { // otherwise it is the empty one of a configuration that a program wrote
		result.DNS = m.DNS
	}
	for _, a := range pair.Addresses {
		result.IPs = append(result.IPs, &types100.IPConfig{Interface: types100.Int(1), Address: ipNet(netip.PrefixFrom(a, a.BitLen())), Gateway: podnet.Gateway(a).AsSlice()})
	}
	for _, route := range pair.Routes {
		one := &types.Route{Dst: ipNet(route.Dst), GW: podnet.Gateway(route.Dst.Addr()).AsSlice(), MTU: route.MTU, AdvMSS: route.AdvMSS, Priority: route.Priority}
		if route.Table != 0 {
			one.Table = &route.Table
		}
		result.Routes = append(result.Routes, one)
	}
	converted, err := result.GetAsVersion(r.Version)
	if err != nil {
		return nil, fail(codeIO, "write result in version %s: %v", r.Version, err)
	}
	return json.Marshal(converted)
}

// macText is empty for the address of a device whose packets have no Ethernet headers.
func macText(a net.HardwareAddr) string {
	if bytes.Count(a, []byte{0}) == len(a) {
		return ""
	}
	return a.String()
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// removeInterface is DEL of an attachment that the main plugin made. It goes on after errors; but if the interface
// cannot be removed, its address stays allocated, so that no other pod gets it.
func (r *request) removeInterface(k pod.Key, netns string) error {
	device := podnet.HostName(k)
	stuck := r.Remove(device)
	err := errors.Join(stuck, r.Unmasquerade(r.Network, device))
	if stuck == nil && r.main() {
		if _, released := r.ipam("DEL", k, netns); released != nil {
			return errors.Join(released, err)
		}
	}
	return err
}

// checkInterface is CHECK of the main plugin: it compares with the result of ADD.
func (r *request) checkInterface(made *pod.Pod) error {
	_, err := r.ipam("CHECK", r.key, r.netns)
	if err != nil {
		return err
	}
	var prev struct {
		Routes []struct {
			Dst   netip.Prefix `json:"dst"`
			GW    netip.Addr   `json:"gw"`
			Table int          `json:"table"` // 0: the main one
		} `json:"routes"`
	}
	if err := decode(r.PrevResult, "prevResult", &prev); err != nil {
		return err
	}
	pair := &podnet.Pair{NetNS: r.netns, Name: r.key.Interface, HostName: podnet.HostName(r.key)}
	for _, a := range made.Addresses {
		pair.Addresses = append(pair.Addresses, a.Addr())
	}
	for _, route := range prev.Routes {
		if route.GW == podnet.Gateway(route.Dst.Addr()) { // otherwise another plugin's
			pair.Routes = append(pair.Routes, podnet.Route{Dst: route.Dst, Table: route.Table})
		}
	}
	if err := r.Check(pair, made.Link); err != nil {
		return fail(codeChanged, "%v", err)
	}
	if !made.Masqueraded {
		return nil
	}
	m, err := r.mainConfig(nil)
	if err != nil {
		return err
	}
	if err := r.CheckMasquerade(r.Network, pair.HostName, m.except); err != nil {
		return fail(codeChanged, "%v", err)
	}
	return nil
}

// collectInterfaces is GC of the main plugin: it removes what belongs to attachments that are not valid any more,
// and their records. It goes on after errors, and returns the attachments of which something is left, and whether
// it has deleted a record.
//
// Each record is deleted as soon as nothing is left of its attachment: if there are so many that the command's time
// ends before all are removed, the next GC has fewer to remove.
func (r *request) collectInterfaces(valid []pod.Key) (left []pod.Key, deleted bool, err error) {
	records, _, err := r.Dir.List() // refused files do not say which interface they are about
	failed := []error{err}
	for i := range records {
		p := &records[i].Pod
		if !p.Made || p.Network != r.Network || slices.Contains(valid, p.Key()) {
			continue
		}
		if err := r.removeInterface(p.Key(), ""); err != nil {
			failed = append(failed, fmt.Errorf("container %s, interface %s: %w", p.Container, p.Interface, err))
			left = append(left, p.Key())
			continue
		}
		one, err := r.Dir.Delete(p.Key())
		deleted, failed = deleted || one, append(failed, err)
	}
	if r.main() && err == nil { // otherwise it is not known which addresses are still in use
		failed = append(failed, r.collectAddresses(left))
	}
	keep := make(map[string]bool, len(valid))
	for _, k := range valid {
		keep[podnet.HostName(k)] = true
	}
	gone, err := r.Masqueraded(r.Network)
	gone = slices.DeleteFunc(gone, func(device string) bool { return keep[device] })
	failed = append(failed, err, r.Unmasquerade(r.Network, gone...))
	return left, deleted, errors.Join(failed...)
}
