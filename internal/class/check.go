package class

import (
	"fmt"
	"net/netip"
)

// Check reports the first requirement of Table's documentation that t violates. It is for
// tests and for code that builds a table by hand.
func (t *Table) Check() error {
	if len(t.Classes) > MaxRules {
		return fmt.Errorf("%d classes, at most %d fit", len(t.Classes), MaxRules)
	}
	if len(t.Same) > MaxSamePrefix {
		return fmt.Errorf("%d same-prefix comparisons, at most %d fit", len(t.Same), MaxSamePrefix)
	}
	if t.Dims&DimRemote != 0 {
		if err := checkPrefixes(t.Remote); err != nil {
			return fmt.Errorf("remote: %w", err)
		}
	}
	if t.Dims&DimLocal != 0 {
		if err := checkPrefixes(t.Local); err != nil {
			return fmt.Errorf("local: %w", err)
		}
	}
	if t.Dims&DimRemotePort != 0 {
		if err := checkPorts(t.RemotePort); err != nil {
			return fmt.Errorf("remote port: %w", err)
		}
	}
	if t.Dims&DimLocalPort != 0 {
		if err := checkPorts(t.LocalPort); err != nil {
			return fmt.Errorf("local port: %w", err)
		}
	}
	return nil
}

func checkPrefixes(rows []PrefixSet) error {
	if len(rows) > MaxPrefixes {
		return fmt.Errorf("%d prefixes, at most %d fit", len(rows), MaxPrefixes)
	}
	missing := map[netip.Addr]bool{netip.IPv4Unspecified(): true, netip.IPv6Unspecified(): true}
	for i, r := range rows {
		switch {
		case r.Prefix != r.Prefix.Masked() || r.Prefix.Addr().Is4In6():
			return fmt.Errorf("%s has bits set beyond its length, or is v4-mapped", r.Prefix)
		case i > 0 && ComparePrefix(rows[i-1].Prefix, r.Prefix) >= 0:
			return fmt.Errorf("%s is out of order", r.Prefix)
		case r.Prefix.Bits() == 0:
			delete(missing, r.Prefix.Addr())
		}
	}
	if len(missing) != 0 {
		return fmt.Errorf("no row for every address")
	}
	return nil
}

func checkPorts(rows []PortRange) error {
	if len(rows) > MaxPortRanges {
		return fmt.Errorf("%d port ranges, at most %d fit", len(rows), MaxPortRanges)
	}
	next := 0
	for i, r := range rows {
		switch {
		case int(r.First) != next || r.Last < r.First:
			return fmt.Errorf("range %d-%d: want one from %d", r.First, r.Last, next)
		case i > 0 && rows[i-1].Rules == r.Rules:
			return fmt.Errorf("range %d-%d: same rules as the one before", r.First, r.Last)
		}
		next = int(r.Last) + 1
	}
	if next != 1<<16 {
		return fmt.Errorf("ranges end at %d", next-1)
	}
	return nil
}
