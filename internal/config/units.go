package config

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

// bad is the mistake of a value that cannot be used, and what to write instead.
func bad(whatToDo, format string, args ...any) error {
	return &yamlfile.Error{Problem: fmt.Sprintf(format, args...), WhatToDo: whatToDo}
}

// unit is a suffix and what it stands for, as a fraction of the base unit. Units are
// read here and not by a library: go-humanize and docker/go-units accept a number without a
// unit, know no bit/s, and compute in floating point.
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
	sizeHint     = "write a size such as 64KiB or 1.5MB (units: B, kB MB GB TB of 1000, KiB MiB GiB TiB of 1024)"
	rateHint     = "write a rate such as 100Mbit/s or 12.5MB/s (units: bit/s kbit/s Mbit/s Gbit/s Tbit/s B/s kB/s MB/s GB/s KiB/s MiB/s GiB/s)"
	durationHint = "write a duration such as 10ms, 1s or 1m30s (units: us ms s m h)"
	shareHint    = "write a share such as 2% or 0.02"
	oneHint      = "write 1% or 100%"
)

// ParseSize reads a number of bytes: "64KiB", "64Ki", "1.5MB". Only 0 needs no
// unit.
func ParseSize(s string) (uint64, error) { return parseUnits(s, "size", sizeUnits, sizeHint) }

// ParseRate reads a number of bytes per second: "100Mbit/s", "12.5MB/s". Only 0
// needs no unit.
func ParseRate(s string) (uint64, error) { return parseUnits(s, "rate", rateUnits, rateHint) }

func parseUnits(s, what string, units []unit, hint string) (uint64, error) {
	number, suffix := splitNumber(s)
	if number == "" {
		return 0, bad(hint, "%q is not a %s", s, what)
	}
	if _, err := strconv.ParseFloat(number, 64); err != nil || number[0] == '.' || strings.HasSuffix(number, ".") {
		return 0, bad(hint, "%q does not begin with a valid number", s)
	}
	if suffix == "" && strings.Trim(number, "0") == "" {
		return 0, nil
	}
	if what == "size" && len(suffix) == 2 && suffix[1] == 'i' {
		suffix += "B" // Ki can only mean KiB
	}
	for _, u := range units {
		if u.suffix == suffix {
			return scale(s, number, u, hint)
		}
	}
	if suffix == "" {
		return 0, bad(didYouMean(number, meant("", units), hint), "%q has no unit", s)
	}
	if near := meant(suffix, units); near != nil {
		return 0, bad(didYouMean(number, near, hint), "%q has the unknown unit %q", s, suffix)
	}
	return 0, bad(hint, "%q is not a %s: unknown unit %q", s, what, suffix)
}

// didYouMean writes number with each of the units that may be meant.
func didYouMean(number string, units []unit, hint string) string {
	var list []string
	for _, u := range units {
		text := number + u.suffix
		// Explain k and Ki if both may be meant.
		if v, err := scale(text, number, u, hint); err == nil && len(units) > 1 && strings.HasSuffix(u.suffix, "B") && u.num > 1 {
			text += fmt.Sprintf(" (%d bytes)", v)
		}
		list = append(list, text)
	}
	return "did you mean " + strings.Join(list, " or ") + "? " + hint
}

// prefixes of units, in lower case.
const prefixes = "kmgt"

// meant lists the units that a wrong one probably stands for. A prefix alone, or
// one of the wrong case, is read as 1000 by some and as 1024 by others, or as bits
// and as bytes: both are named, for the writer to choose.
func meant(suffix string, units []unit) (list []unit) {
	s := strings.ToLower(strings.TrimSpace(suffix))
	rate := strings.HasSuffix(units[0].suffix, "/s")
	var want []string
	i := -1
	if s != "" {
		i = strings.IndexByte(prefixes, s[0])
	}
	p := ""
	if i >= 0 {
		p, s = []string{"k", "M", "G", "T"}[i], s[1:]
	}
	binary := strings.HasPrefix(s, "i")
	if binary {
		s = s[1:]
	}
	per := strings.HasSuffix(s, "ps") || strings.HasSuffix(s, "/s")
	s = strings.TrimSuffix(strings.TrimSuffix(s, "ps"), "/s")
	bits := s == "bit" || s == "bits" || s == "b" && strings.Contains(suffix, "b") && per
	bytes := s == "b" && !bits || s == "byte" || s == "bytes"
	switch {
	case s != "" && !bits && !bytes:
	case rate && binary && !bits:
		want = []string{strings.ToUpper(p) + "iB/s"}
	case rate && bits:
		want = []string{p + "bit/s"}
	case rate && bytes:
		want = []string{p + "B/s"}
	case rate && p == "":
		want = []string{"B/s", "bit/s"}
	case rate:
		want = []string{p + "bit/s", p + "B/s"}
	case bits || per:
	case binary:
		want = []string{strings.ToUpper(p) + "iB"}
	case p == "":
		want = []string{"B"}
	default:
		want = []string{p + "B", strings.ToUpper(p) + "iB"}
	}
	for _, w := range want {
		for _, u := range units {
			if u.suffix == w {
				list = append(list, u)
			}
		}
	}
	return list
}

// splitNumber splits s after the leading digits and dots.
func splitNumber(s string) (number, suffix string) {
	i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i:]
}

// scale returns number times u, which must be a whole number. 18 digits fit a uint64.
func scale(s, number string, u unit, hint string) (uint64, error) {
	whole, fraction, _ := strings.Cut(number, ".")
	mantissa, err := strconv.ParseUint(whole+fraction, 10, 64)
	if err != nil || whole == "" || strings.HasSuffix(number, ".") || len(whole+fraction) > 18 {
		return 0, bad(hint, "%q does not begin with a valid number", s)
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
		return 0, bad("write a value that is a whole number of bytes", "%q is not a whole number of bytes", s)
	}
	return v, nil
}

// ParseDuration reads a duration, which needs a unit unless it is 0.
func ParseDuration(s string) (time.Duration, error) {
	if n, suffix := splitNumber(s); suffix == "" && strings.Trim(n, "0") != "" {
		return 0, bad(fmt.Sprintf("did you mean %sms or %ss? %s", n, n, durationHint), "%q has no unit", s)
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
	case v == 1:
		return 0, bad(oneHint, "%s is ambiguous: 1%% or 100%%", s)
	case v > 1 && v <= 100 && suffix == "":
		return 0, bad("did you mean "+number+"%? A number without % is a share below 1", "%s is more than 100%%", s)
	case suffix == "%" || v > 1:
		return 0, bad(shareHint, "%s is more than 100%%", s)
	}
	return v, nil
}

// parseField reads a value of field f. Durations, sizes and rates need a unit,
// because a bare number would mean something else from field to field.
func parseField(f tcp.Field, s string) (uint64, error) {
	spec := &tcp.Fields[f]
	v, err := parseInUnit(spec.Unit, s)
	if err != nil {
		if near := inRange(f, s); near != "" {
			return 0, bad("did you mean "+near+"? "+durationHint, "%q has no unit", s)
		}
		return 0, err
	}
	if v < spec.Min || v > spec.Max {
		return 0, bad("write "+fieldRange(f), "%s is out of range", s)
	}
	return v, nil
}

// inRange lists what a bare number can mean as a duration of field f.
func inRange(f tcp.Field, s string) string {
	if _, suffix := splitNumber(s); suffix != "" {
		return ""
	}
	var near []string
	for _, u := range []tcp.Unit{tcp.Microseconds, tcp.Milliseconds, tcp.Seconds} {
		text := s + u.String()
		spec := &tcp.Fields[f]
		if v, err := parseInUnit(spec.Unit, text); err == nil && isDuration(spec.Unit) && v >= spec.Min && v <= spec.Max {
			near = append(near, text)
		}
	}
	return strings.Join(near, " or ")
}

func isDuration(u tcp.Unit) bool {
	return u == tcp.Microseconds || u == tcp.Milliseconds || u == tcp.Seconds
}

func parseInUnit(u tcp.Unit, s string) (uint64, error) {
	switch u {
	case tcp.Bool:
		v, err := ParseBool(s)
		if v {
			return 1, nil
		}
		return 0, err
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
		return ParseCount(s, "a number of packets")
	}
	return ParseCount(s, "a number")
}

// ParseCount reads decimal digits, or hexadecimal ones after 0x.
func ParseCount(s, what string) (uint64, error) {
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

// parseTicks reads a duration as a whole number of tick.
func parseTicks(s string, u tcp.Unit, tick time.Duration) (uint64, error) {
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
	if spec.Unit == tcp.Bytes || spec.Unit == tcp.BytesPerSecond {
		return fmt.Sprintf("%d%s to %d%s", spec.Min, spec.Unit, spec.Max, spec.Unit) // as in the file
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
