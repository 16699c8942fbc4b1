package report

import (
	"math"
	"strconv"

	"github.com/tcpilot/tcpilot/lab/measure"
)

// scale converts a metric's base unit into one with a suitable prefix.
type scale struct {
	factor   float64 // multiplies a value in the base unit
	unit     string
	decimals int
}

// prefixes of units, from large to small.
var (
	large = []scale{{1e-9, "G", 0}, {1e-6, "M", 0}, {1e-3, "k", 0}, {1, "", 0}}
	small = []scale{{1, "", 0}, {1e3, "m", 0}, {1e6, "u", 0}, {1e9, "n", 0}}
)

// scaleOf returns the scale for all of a metric's values in a table: the largest prefix
// with which the greatest value is at least 1, and as many decimals as the smallest value
// needs for two significant digits, up to a limit.
func scaleOf(metric string, values []float64) scale {
	m, _ := measure.Find(metric)
	least, most := math.Inf(1), 0.0
	for _, v := range values {
		if v = math.Abs(v); v > 0 {
			least, most = min(least, v), max(most, v)
		}
	}
	s := scale{1, m.Unit, 0}
	switch m.Unit {
	case "bit/s", "1/s":
		s = prefixed(large, most, m.Unit)
	case "s", "s/B":
		s = prefixed(small, most, m.Unit)
	case "share":
		s = scale{100, "%", 0}
	}
	if most == 0 {
		return s
	}
	of := func(v float64) int { return int(math.Floor(math.Log10(v * s.factor))) }
	s.decimals = min(max(0, 1-of(least), 2-of(most)), max(0, 3-of(most)), 3)
	return s
}

// prefixed chooses among prefixes from large to small. Rates of events below 100,000 per
// second get no prefix.
func prefixed(from []scale, most float64, unit string) scale {
	if unit == "1/s" && most < 1e5 || most == 0 {
		return scale{1, unit, 0}
	}
	for _, p := range from {
		if most*p.factor >= 0.9995 {
			return scale{p.factor, p.unit + unit, 0}
		}
	}
	last := from[len(from)-1]
	return scale{last.factor, last.unit + unit, 0}
}

// write formats v, which is in the metric's base unit.
func (s scale) write(v float64) string {
	return strconv.FormatFloat(v*s.factor, 'f', s.decimals, 64)
}

// value formats a single value with its unit.
func value(metric string, v float64) string {
	s := scaleOf(metric, []float64{v})
	if s.unit == "" {
		return s.write(v)
	}
	return s.write(v) + " " + s.unit
}

// factor formats a ratio with three significant digits.
func factor(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.0995 || a == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// half is the distance from the median to the farther end of its interval.
func half(median float64, ci measure.Interval) float64 {
	return max(ci.High-median, median-ci.Low)
}
