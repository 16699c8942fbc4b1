package config

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// valueError is a value that cannot be used, and what to write instead.
type valueError struct{ problem, whatToDo string }

func (e *valueError) Error() string { return e.problem + "; " + e.whatToDo }

func bad(whatToDo, format string, args ...any) error {
	return &valueError{fmt.Sprintf(format, args...), whatToDo}
}

// unit is a suffix and what it stands for, as a fraction of the base unit.
type unit struct {
	suffix   string
	num, den uint64
}

var sizeUnits = []unit{
	{"B", 1, 1}, {"kB", 1e3, 1}, {"MB", 1e6, 1}, {"GB", 1e9, 1}, {"TB", 1e12, 1},
	{"KiB", 1 << 10, 1}, {"MiB", 1 << 20, 1}, {"GiB", 1 << 30, 1}, {"TiB", 1 << 40, 1},
}

var rateUnits = []unit{
	{"bit/s", 1, 8}, {"kbit/s", 1e3, 8}, {"Mbit/s", 1e6, 8}, {"Gbit/s", 1e9, 8}, {"Tbit/s", 1e12, 8},
	{"B/s", 1, 1}, {"kB/s", 1e3, 1}, {"MB/s", 1e6, 1}, {"GB/s", 1e9, 1},
	{"KiB/s", 1 << 10, 1}, {"MiB/s", 1 << 20, 1}, {"GiB/s", 1 << 30, 1},
}

const (
	sizeHint     = "write a size such as 64KiB or 1.5MB (units: B kB MB GB TB KiB MiB GiB TiB)"
	rateHint     = "write a rate such as 100Mbit/s or 12.5MB/s (units: bit/s kbit/s Mbit/s Gbit/s Tbit/s B/s kB/s MB/s GB/s KiB/s MiB/s GiB/s)"
	durationHint = "write a duration such as 10s or 1m30s (units: us ms s m h)"
	shareHint    = "write a share such as 2% or 0.02"
)

// ParseSize reads a number of bytes: "64KiB", "1.5MB", or a bare "65536".
func ParseSize(s string) (uint64, error) { return parseUnits(s, "size", sizeUnits, sizeHint) }

// ParseRate reads a number of bytes per second: "100Mbit/s", "12.5MB/s", or a
// bare "12500000".
func ParseRate(s string) (uint64, error) { return parseUnits(s, "rate", rateUnits, rateHint) }

func parseUnits(s, what string, units []unit, hint string) (uint64, error) {
	number, suffix := splitNumber(s)
	if number == "" {
		return 0, bad(hint, "%q is not a %s", s, what)
	}
	if suffix == "" {
		suffix = units[0].suffix
		if what == "rate" {
			suffix = "B/s"
		}
	}
	for _, u := range units {
		if u.suffix == suffix {
			return scale(s, number, u, hint)
		}
	}
	if near := meant(suffix, units); near != "" {
		return 0, bad("did you mean "+number+near+"? "+hint, "%q has the unknown unit %q", s, suffix)
	}
	return 0, bad(hint, "%q is not a %s: unknown unit %q", s, what, suffix)
}

// meant returns the unit that an unknown one probably stands for, or "".
func meant(suffix string, units []unit) string {
	suffix = strings.TrimSpace(suffix)
	var list []string
	for _, u := range units {
		list = append(list, u.suffix)
		if u.suffix == suffix+"/s" || u.suffix == strings.TrimSuffix(suffix, "bps")+"bit/s" {
			return u.suffix
		}
	}
	return Nearest(suffix, list)
}

// splitNumber cuts s behind the leading digits and dots.
func splitNumber(s string) (number, suffix string) {
	i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i:]
}

// scale returns number times u, which has to be whole. 18 digits fit a uint64.
func scale(s, number string, u unit, hint string) (uint64, error) {
	whole, fraction, _ := strings.Cut(number, ".")
	mantissa, err := strconv.ParseUint(whole+fraction, 10, 64)
	if err != nil || whole == "" || strings.HasSuffix(number, ".") || len(whole+fraction) > 18 {
		return 0, bad(hint, "%q has no usable number", s)
	}
	den := u.den
	for range len(fraction) {
		den *= 10 // at most 8 * 10^17
	}
	hi, lo := bits.Mul64(mantissa, u.num)
	if hi >= den {
		return 0, bad("write a smaller one", "%q is too large", s)
	}
	v, rest := bits.Div64(hi, lo, den)
	if rest != 0 {
		return 0, bad("write a value that comes out even", "%q is not a whole number of bytes", s)
	}
	return v, nil
}

// ParseDuration reads a duration, which needs a unit unless it is 0.
func ParseDuration(s string) (time.Duration, error) {
	if n, suffix := splitNumber(s); suffix == "" && strings.Trim(n, "0") != "" {
		return 0, bad(durationHint, "%q has no unit", s)
	}
	v, err := time.ParseDuration(s)
	if err != nil || strings.HasPrefix(s, "+") {
		return 0, bad(durationHint, "%q is not a duration", s)
	}
	if v < 0 || s[0] == '-' {
		return 0, bad(durationHint, "%q is negative", s)
	}
	return v, nil
}

// ParseShare reads a share, "2%" or "0.02", as a number of 0 to 1.
func ParseShare(s string) (float64, error) {
	number, suffix := splitNumber(s)
	v, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil || (suffix != "" && suffix != "%"):
		return 0, bad(shareHint, "%q is not a share", s)
	case suffix == "%" && v <= 100:
		return v / 100, nil
	case v > 1 && v <= 100 && suffix == "":
		return 0, bad("did you mean "+number+"%? A bare number is a share of 0 to 1", "%s is more than everything", s)
	case suffix == "%" || v > 1:
		return 0, bad(shareHint, "%s is more than everything", s)
	}
	return v, nil
}

// ParseField reads a value of field f: a bare number is in the field's own unit,
// durations, sizes and rates can have another one.
func ParseField(f tcp.Field, s string) (uint64, error) {
	spec := &tcp.Fields[f]
	v, err := parseInUnit(spec.Unit, s)
	if err != nil {
		return 0, err
	}
	if v < spec.Min || v > spec.Max {
		return 0, bad("write "+fieldRange(f), "%s is out of range", s)
	}
	return v, nil
}

func parseInUnit(u tcp.Unit, s string) (uint64, error) {
	switch u {
	case tcp.Bool:
		switch s {
		case "true":
			return 1, nil
		case "false":
			return 0, nil
		}
		return 0, bad("write true or false", "%q is neither true nor false", s)
	case tcp.Bytes:
		return ParseSize(s)
	case tcp.BytesPerSecond:
		return ParseRate(s)
	case tcp.Microseconds:
		return parseTicks(s, u, time.Microsecond)
	case tcp.Milliseconds:
		return parseTicks(s, u, time.Millisecond)
	case tcp.Seconds:
		return parseTicks(s, u, time.Second)
	case tcp.Packets:
		return parseCount(s, "a number of packets")
	}
	return parseCount(s, "a number")
}

// parseCount reads decimal digits, or hexadecimal ones after 0x.
func parseCount(s, what string) (uint64, error) {
	digits, base := s, 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = hex, 16
	} else if len(s) > 1 && s[0] == '0' {
		return 0, bad("write it without leading zeros", "%q has a leading zero", s)
	}
	v, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return 0, bad("write a bare whole number", "%q is not %s", s, what)
	}
	return v, nil
}

// parseTicks reads a duration as a whole number of tick; a bare number counts
// ticks.
func parseTicks(s string, u tcp.Unit, tick time.Duration) (uint64, error) {
	if _, suffix := splitNumber(s); suffix == "" && s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, bad("write a whole number of "+u.String()+", or a duration such as 10ms", "%q is not a duration", s)
		}
		return v, nil
	}
	d, err := ParseDuration(s)
	if err != nil {
		return 0, err
	}
	if d%tick != 0 {
		return 0, bad("round it", "%q is not a whole number of %s", s, u)
	}
	return uint64(d / tick), nil
}

// fieldRange writes the range of a field for people: "1 to 1000 packets".
func fieldRange(f tcp.Field) string {
	spec := &tcp.Fields[f]
	switch spec.Unit {
	case tcp.Bool:
		return "true or false"
	case tcp.Microseconds:
		return durationRange(spec.Min, spec.Max, time.Microsecond)
	case tcp.Milliseconds:
		return durationRange(spec.Min, spec.Max, time.Millisecond)
	case tcp.Seconds:
		return durationRange(spec.Min, spec.Max, time.Second)
	}
	return strings.TrimSpace(fmt.Sprintf("%d to %d %s", spec.Min, spec.Max, spec.Unit))
}

func durationRange(low, high uint64, tick time.Duration) string {
	return shortDuration(time.Duration(low)*tick) + " to " + shortDuration(time.Duration(high)*tick)
}

// shortDuration writes a duration without trailing zero units: 5m, not 5m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return strings.ReplaceAll(s, "µ", "u")
}
