package scenario

import (
	"fmt"
	"strconv"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
)

// Upper limits of values: larger ones are taken for typing errors.
const (
	maxDelay    = 10 * time.Second
	maxDuration = time.Hour
	maxRate     = 400e9   // bit/s
	maxSize     = 1 << 40 // bytes
	maxCount    = 1e7
)

// Each of these returns the reader of one kind of value, which leaves the
// destination alone if the value is wrong.

func (r *reader) text(to *string) func(*node) {
	return func(n *node) {
		if r.want(n, text) {
			*to = n.text
		}
	}
}

// oneOf reads one of a closed set of values.
func oneOf[T ~string](r *reader, what string, to *T, values ...T) func(*node) {
	return func(n *node) {
		if !r.want(n, text) {
			return
		}
		all := make([]string, len(values))
		for i, v := range values {
			if string(v) == n.text {
				*to = v
				return
			}
			all[i] = string(v)
		}
		r.unknown(n, what, n.text, all)
	}
}

func (r *reader) bool(to *bool) func(*node) {
	return func(n *node) {
		switch {
		case !r.want(n, text):
		case n.text != "true" && n.text != "false":
			r.fail(n, fmt.Sprintf("%q is neither true nor false", n.text), "write true or false")
		default:
			*to = n.text == "true"
		}
	}
}

// parsed reads a value by a parser of package config.
func parsed[T any](r *reader, to *T, parse func(string) (T, error), ok func(T) bool, limits string) func(*node) {
	return func(n *node) {
		if !r.want(n, text) {
			return
		}
		v, err := parse(n.text)
		switch {
		case err != nil:
			r.fail(n, err.Error(), "") // the error says what to do
		case !ok(v):
			r.fail(n, n.text+" is out of range", "write "+limits)
		default:
			*to = v
		}
	}
}

func (r *reader) duration(to *time.Duration, low, high time.Duration) func(*node) {
	return parsed(r, to, config.ParseDuration,
		func(d time.Duration) bool { return d >= low && d <= high }, fmt.Sprintf("%v to %v", low, high))
}

func (r *reader) share(to *float64) func(*node) {
	return parsed(r, to, config.ParseShare, func(float64) bool { return true }, "")
}

func (r *reader) size(to *uint64) func(*node) {
	return parsed(r, to, config.ParseSize, func(v uint64) bool { return v <= maxSize }, "at most 1TiB")
}

// rate reads bit/s.
func (r *reader) rate(to *uint64) func(*node) {
	return parsed(r, to, parseBits, func(v uint64) bool { return v <= maxRate }, "at most 400Gbit/s")
}

func parseBits(s string) (uint64, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
		return 0, fmt.Errorf("%q has no unit; write a rate such as 20Mbit/s", s)
	}
	v, err := config.ParseRate(s)
	return 8 * v, err
}

// bytes reads a size as a floating-point number, as distributions need it.
func (r *reader) bytes(to *float64) func(*node) {
	var v uint64
	read := r.size(&v)
	return func(n *node) {
		read(n)
		*to = float64(v)
	}
}

func (r *reader) count(to *int, low, high int) func(*node) {
	return parsed(r, to, parseCount, func(v int) bool { return v >= low && v <= high },
		fmt.Sprintf("%d to %d", low, high))
}

func parseCount(s string) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number; write digits only", s)
	}
	return v, nil
}

// number reads a positive number.
func (r *reader) number(to *float64, high float64) func(*node) {
	return parsed(r, to, parseNumber, func(v float64) bool { return v > 0 && v <= high },
		fmt.Sprintf("more than 0, at most %g", high))
}

func parseNumber(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number; write digits, with a decimal point if needed", s)
	}
	return v, nil
}

// each reads the entries of a list, or a single value as a list of one.
func (r *reader) each(n *node, read func(*node)) {
	switch n.kind {
	case list:
		if len(n.items) == 0 {
			r.fail(n, "the list is empty", "add an entry, or remove the key")
		}
		for _, item := range n.items {
			read(item)
		}
	case text:
		read(n)
	default:
		r.want(n, list)
	}
}

func (r *reader) texts(to *[]string) func(*node) {
	return func(n *node) {
		*to = nil
		r.each(n, func(item *node) {
			if r.want(item, text) {
				*to = append(*to, item.text)
			}
		})
	}
}
