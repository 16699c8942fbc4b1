package console

import (
	"math"
	"strconv"
)

// Prefix returns v in the greatest of the decimal units k, M, G and T that leaves at least
// 1, and that prefix. It rounds up from 999.5.
func Prefix(v float64) (scaled float64, prefix string) {
	for _, p := range []struct {
		size   float64
		prefix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.size*0.9995 {
			return v / p.size, p.prefix
		}
	}
	return v, ""
}

// amount writes a quantity with three significant digits, without zeros at the end: 625 kB,
// 1.5 Mbit/s. dustin/go-humanize writes neither such digits nor bit/s.
func amount(v float64, unit string) string {
	v, prefix := Prefix(v)
	return Digits(v) + " " + prefix + unit
}

// Bytes writes a number of bytes: 625 kB.
func Bytes(n float64) string { return amount(n, "B") }

// BitRate writes a number of bits per second: 1.5 Mbit/s.
func BitRate(perSecond float64) string { return amount(perSecond, "bit/s") }

// Percent writes a share, 0 to 1, with three significant digits: 0.25 %.
func Percent(share float64) string { return Digits(100*share) + " %" }

// Digits writes a number with three significant digits, without zeros at the end, or with
// all digits before the point.
func Digits(v float64) string {
	if math.Abs(v) >= 999.5 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
