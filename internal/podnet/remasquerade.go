package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tcpilot/tcpilot/internal/netns"
)

// Remasquerade makes what is missing of the rules that Masquerade made for the devices of a network: a program that
// deletes all tables (nft flush ruleset, as the service nftables does when it is reloaded) deletes that of pods as well. It returns
// what was missing; nil if nothing was. A device that does not exist in this network namespace is left out.
func Remasquerade(network string, except []netip.Prefix, devices []string) (missing, err error) {
	host, err := open(netns.Own)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	return remasquerade(network, except, devices, func(device string) bool {
		_, err := host.LinkByName(device)
		return isNotFound(err)
	})
}

func remasquerade(network string, except []netip.Prefix, devices []string, isGone func(device string) bool) (missing, err error) {
	devices = slices.DeleteFunc(slices.Clone(devices), isGone)
	if len(devices) == 0 {
		return nil, nil
	}
	r, err := openRules(network)
	if err != nil {
		return nil, fmt.Errorf("look for the rules that masquerade pods: %w", err)
	}
	defer func() { err = errors.Join(err, r.CloseLasting()) }()
	if missing = r.check(except, devices...); missing == nil {
		return nil, nil
	}
	if err := r.write(except, devices...); err != nil {
		return missing, err
	}
	// DEL removes the device before the rules. So if a device exists now, its DEL still has to remove the rules; if it does
	// not, DEL may have found none.
	if gone := slices.DeleteFunc(devices, func(device string) bool { return !isGone(device) }); len(gone) > 0 {
		err = r.remove(gone)
	}
	return missing, err
}
