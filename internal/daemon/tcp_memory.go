package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/sysctl"
)

// shortOfMemory reports whether the memory of all TCP sockets is nearer to the threshold `pressure`
// of the kernel, from which it shrinks windows, than to `low`, below which it does not limit it
// (tcp_mem in ip-sysctl.rst).
func (b *bufferLimits) shortOfMemory() (bool, error) {
	thresholds, err := b.tcpMem()
	if err != nil {
		return false, err
	}
	stat, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return false, err
	}
	return isShort(thresholds, string(stat))
}

// tcpMem reads net.ipv4.tcp_mem, which only the initial network namespace has.
func (b *bufferLimits) tcpMem() (value string, err error) {
	read := func() (err error) {
		value, err = sysctl.Read("net.ipv4.tcp_mem")
		return err
	}
	if b.initial != "" && netns.In(b.initial, read) == nil {
		return value, nil
	}
	for _, ns := range b.list {
		if err = netns.In(ns.Path, read); err == nil {
			b.initial = ns.Path
			return value, nil
		}
	}
	return "", fmt.Errorf("net.ipv4.tcp_mem is not visible here: %w", err)
}

// isShort compares the values of tcp_mem (low, pressure, high; pages) with the pages in use,
// as /proc/net/sockstat writes them: "TCP: inuse 2 orphan 0 tw 0 alloc 2 mem 26".
func isShort(thresholds, sockstat string) (bool, error) {
	var low, pressure, high, pages uint64
	if n, err := fmt.Sscan(thresholds, &low, &pressure, &high); n != 3 {
		return false, fmt.Errorf("net.ipv4.tcp_mem is %q: %w", thresholds, err)
	}
	for line := range strings.Lines(sockstat) {
		if rest, ok := strings.CutPrefix(line, "TCP:"); ok {
			f := strings.Fields(rest)
			for i := 0; i+1 < len(f); i += 2 {
				if f[i] != "mem" {
					continue
				}
				var err error
				if pages, err = strconv.ParseUint(f[i+1], 10, 64); err != nil {
					return false, fmt.Errorf("/proc/net/sockstat: %w", err)
				}
				return pages > low/2+pressure/2, nil
			}
		}
	}
	return false, errors.New("/proc/net/sockstat does not have the memory of TCP")
}
