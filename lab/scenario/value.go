package scenario

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
	"github.com/tcpilot/tcpilot/lab/link"
)

// Upper limits of values: larger ones are refused as typing errors.
const (
	maxDelay = 10 * time.Second
	maxSize  = 1 << 40 // bytes
	maxSeed  = 1e7
)

// Each of these returns the reader of one kind of value, which leaves the
// destination alone if the value is wrong.

func (r *reader) text(to *string) func(*node) {
	return func(n *node) {
		if r.Want(n, yamlfile.Text) {
			*to = n.Text
		}
	}
}

// oneOf reads one of a closed set of values.
func oneOf[T ~string](r *reader, what string, to *T, values ...T) func(*node) {
	return func(n *node) {
		if !r.Want(n, yamlfile.Text) {
			return
		}
		all := make([]string, len(values))
		for i, v := range values {
			if string(v) == n.Text {
				*to = v
				return
			}
			all[i] = string(v)
		}
		r.Unknown(n.Place, what, n.Text, all, "")
	}
}

// parsed reads a value by a parser, mostly of package config; limits say what ok allows.
func parsed[T any](r *reader, to *T, parse func(string) (T, error), ok func(T) bool, limits string) func(*node) {
	return func(n *node) {
		if !r.Want(n, yamlfile.Text) {
			return
		}
		v, err := parse(n.Text)
		switch {
		case err != nil:
			r.Wrong(n, err)
		case !ok(v):
			r.Fail(n.Place, n.Text+" is out of range", "write "+limits)
		default:
			*to = v
		}
	}
}

func always[T any](T) bool { return true }

func (r *reader) bool(to *bool) func(*node) {
	return parsed(r, to, config.ParseBool, always, "")
}

func (r *reader) duration(to *time.Duration, low, high time.Duration) func(*node) {
	return parsed(r, to, config.ParseDuration,
		func(d time.Duration) bool { return d >= low && d <= high }, fmt.Sprintf("%v to %v", low, high))
}

func (r *reader) share(to *float64) func(*node) {
	return parsed(r, to, config.ParseShare, always, "")
}

func (r *reader) size(to *uint64) func(*node) {
	return parsed(r, to, config.ParseSize, func(v uint64) bool { return v <= maxSize }, "at most 1TiB")
}

// rate reads bit/s.
func (r *reader) rate(to *uint64) func(*node) {
	return parsed(r, to, parseBits, func(v uint64) bool { return v <= link.MaxRate }, "at most 100Gbit/s")
}

func parseBits(s string) (uint64, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
		return 0, &yamlfile.Error{Problem: fmt.Sprintf("%q has no unit", s), WhatToDo: "write a rate such as 20Mbit/s"}
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
	v, err := config.ParseCount(s, "a whole number")
	return int(min(v, math.MaxInt)), err
}

// number reads a positive number.
func (r *reader) number(to *float64, high float64) func(*node) {
	return parsed(r, to, parseNumber, func(v float64) bool { return v > 0 && v <= high },
		fmt.Sprintf("more than 0, at most %g", high))
}

func parseNumber(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, &yamlfile.Error{Problem: fmt.Sprintf("%q is not a number", s), WhatToDo: "write digits, with a decimal point if needed"}
	}
	return v, nil
}

func (r *reader) texts(to *[]string) func(*node) {
	return func(n *node) {
		*to = nil
		for _, item := range r.Values(n) {
			if r.Want(item, yamlfile.Text) {
				*to = append(*to, item.Text)
			}
		}
	}
}
