package config

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

func TestParseSizeAndRate(t *testing.T) {
	for _, c := range []struct {
		parse func(string) (uint64, error)
		in    string
		want  uint64
		wrong string // part of the problem
	}{
		{ParseSize, "0", 0, ""},
		{ParseSize, "1500000", 0, "has no unit"},
		{ParseSize, "1500000B", 1500000, ""},
		{ParseSize, "64Ki", 65536, ""},
		{ParseSize, "4Mi", 4 << 20, ""},
		{ParseSize, "64KiB", 65536, ""},
		{ParseSize, "1.5MB", 1500000, ""},
		{ParseSize, "1.5KiB", 1536, ""},
		{ParseSize, "0.5B", 0, "whole number"},
		{ParseSize, "2TiB", 2 << 40, ""},
		{ParseSize, "64KB", 0, "unknown unit"},
		{ParseSize, "64 KiB", 0, "unknown unit"},
		{ParseSize, "64K", 0, "unknown unit"},
		{ParseSize, "KiB", 0, "not a size"},
		{ParseSize, "", 0, "not a size"},
		{ParseSize, "-1", 0, "not a size"},
		{ParseSize, "1.", 0, "does not begin with a valid number"},
		{ParseSize, ".5kB", 0, "does not begin with a valid number"},
		{ParseSize, "1.2.3kB", 0, "does not begin with a valid number"},
		{ParseSize, "1e3", 0, "unknown unit"},
		{ParseSize, "999999999999999999B", 999999999999999999, ""},
		{ParseSize, "9999999999999999999B", 0, "does not begin with a valid number"},
		{ParseSize, "99999999999TiB", 0, "too large"},
		{ParseRate, "100Mbit/s", 12_500_000, ""},
		{ParseRate, "12.5MB/s", 12_500_000, ""},
		{ParseRate, "8bit/s", 1, ""},
		{ParseRate, "1bit/s", 0, "whole number"},
		{ParseRate, "1.5Gbit/s", 187_500_000, ""},
		{ParseRate, "12500000", 0, "has no unit"},
		{ParseRate, "12500000B/s", 12_500_000, ""},
		{ParseRate, "100Mbps", 0, "unknown unit"},
		{ParseRate, "100Mb/s", 0, "unknown unit"},
		{ParseRate, "100MB", 0, "unknown unit"},
	} {
		got, err := c.parse(c.in)
		switch {
		case c.wrong == "" && (err != nil || got != c.want):
			t.Errorf("%q: got %d, %v, want %d", c.in, got, err, c.want)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%q: got %d, %v, want %q", c.in, got, err, c.wrong)
		}
	}
}

func TestParseDurationAndShare(t *testing.T) {
	for in, want := range map[string]time.Duration{"0": 0, "0s": 0, "10s": 10 * time.Second, "1m30s": 90 * time.Second, "200us": 200 * time.Microsecond} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("%q: got %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "10", "1.5", "-1s", "-0s", "+1s", "1d", "s", "1s 2s", "9999999h"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("%q: got %s", in, got)
		}
	}
	for in, want := range map[string]float64{"0": 0, "2%": 0.02, "0.02": 0.02, "100%": 1, "0.5%": 0.005} {
		if got, err := ParseShare(in); err != nil || math.Abs(got-want) > 1e-15 {
			t.Errorf("%q: got %g, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "%", "1", "1.0", "2", "101%", "101", "-1%", "2 %", "1e-3", "NaN", "Inf", "2%%", "1.1"} {
		if got, err := ParseShare(in); err == nil {
			t.Errorf("%q: got %g", in, got)
		}
	}
}

func TestParseField(t *testing.T) {
	for _, c := range []struct {
		f    tcp.Field
		in   string
		want uint64
	}{
		{tcp.InitCwnd, "40", 40},
		{tcp.RTOMin, "5ms", 5000},
		{tcp.SynRTO, "10ms", 10},
		{tcp.SynRTO, "1s", 1000},
		{tcp.KeepIdle, "2m", 120},
		{tcp.Sndbuf, "1.5MB", 1500000},
		{tcp.MaxPacingRate, "1Gbit/s", 125000000},
		{tcp.NoDelay, "true", 1},
		{tcp.NoDelay, "false", 0},
		{tcp.Mark, "0x10", 16},
		{tcp.TOS, "0", 0},
	} {
		if got, err := parseField(c.f, c.in); err != nil || got != c.want {
			t.Errorf("%s %q: got %d, %v, want %d", c.f, c.in, got, err, c.want)
		}
	}
	for f := range tcp.Fields {
		field, spec := tcp.Field(f), &tcp.Fields[f]
		if spec.Unit == tcp.Bool {
			continue
		}
		for v, ok := range map[uint64]bool{spec.Min: true, spec.Max: true, spec.Max + 1: false} {
			if _, err := parseField(field, inUnit(spec.Unit, v)); (err == nil) != ok {
				t.Errorf("%s: %d: %v", field, v, err)
			}
		}
		if bare := strconv.FormatUint(spec.Max, 10); spec.Unit != tcp.Count && spec.Unit != tcp.Packets {
			if v, err := parseField(field, bare); err == nil {
				t.Errorf("%s: %s without a unit is taken as %d %s", field, bare, v, spec.Unit)
			}
		}
	}
}

// inUnit writes a value as in the configuration.
func inUnit(u tcp.Unit, v uint64) string {
	text := strconv.FormatUint(v, 10)
	if u != tcp.Packets {
		text += u.String()
	}
	return text
}

// A number without a unit is refused if the field has a unit. The suggestion is a valid value
// of the field, and means what was probably meant.
func TestUnitsAreSuggested(t *testing.T) {
	for _, c := range []struct {
		f          tcp.Field
		in, advice string
	}{
		{tcp.Sndbuf, "64k", "did you mean 64kB (64000 bytes) or 64KiB (65536 bytes)? "},
		{tcp.Sndbuf, "64K", "did you mean 64kB (64000 bytes) or 64KiB (65536 bytes)? "},
		{tcp.Sndbuf, "64KB", "did you mean 64kB (64000 bytes) or 64KiB (65536 bytes)? "},
		{tcp.Sndbuf, "4M", "did you mean 4MB (4000000 bytes) or 4MiB (4194304 bytes)? "},
		{tcp.Sndbuf, "4mb", "did you mean 4MB (4000000 bytes) or 4MiB (4194304 bytes)? "},
		{tcp.Sndbuf, "64kib", "did you mean 64KiB? "},
		{tcp.Sndbuf, "64 KiB", "did you mean 64KiB? "},
		{tcp.Sndbuf, "65536", "did you mean 65536B? "},
		{tcp.Sndbuf, "65536 bytes", "did you mean 65536B? "},
		{tcp.Sndbuf, "64kbit", "write a size such as 64KiB"},
		{tcp.MaxPacingRate, "100M", "did you mean 100Mbit/s or 100MB/s? "},
		{tcp.MaxPacingRate, "100Mbps", "did you mean 100Mbit/s? "},
		{tcp.MaxPacingRate, "100mbit", "did you mean 100Mbit/s? "},
		{tcp.MaxPacingRate, "100Mb/s", "did you mean 100Mbit/s? "},
		{tcp.MaxPacingRate, "100MBps", "did you mean 100MB/s? "},
		{tcp.MaxPacingRate, "100MB", "did you mean 100MB/s? "},
		{tcp.MaxPacingRate, "100MiB", "did you mean 100MiB/s? "},
		{tcp.MaxPacingRate, "12500000", "did you mean 12500000B/s or 12500000bit/s? "},
		{tcp.UserTimeout, "30", "did you mean 30ms or 30s? write a duration"},
		{tcp.SynRTO, "1", "did you mean 1ms or 1s? write a duration such as 10ms, 1s or 1m30s"},
		{tcp.RTOMin, "5000", "did you mean 5000us? write a duration"},
		{tcp.KeepIdle, "120", "did you mean 120s? write a duration"},
	} {
		_, err := parseField(c.f, c.in)
		ve, told := err.(*yamlfile.Error)
		if !told || !strings.HasPrefix(ve.WhatToDo, c.advice) {
			t.Errorf("%s: %s: got %v\nwant %s", c.f, c.in, err, c.advice)
		}
	}
}

func FuzzUnits(f *testing.F) {
	for _, s := range []string{"64KiB", "1.5MB", "100Mbit/s", "10s", "2%", "0x10", "true", "1m30s", "", "9999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseShare(s); err == nil && !(v >= 0 && v <= 1) {
			t.Errorf("share %q is %g", s, v)
		}
		if v, err := ParseDuration(s); err == nil && v < 0 {
			t.Errorf("duration %q is %s", s, v)
		}
		for n := range tcp.Fields {
			v, err := parseField(tcp.Field(n), s)
			spec := &tcp.Fields[n]
			if err == nil && (v < spec.Min || v > spec.Max) {
				t.Errorf("%s %q is %d", spec.Name, s, v)
			}
			if _, told := err.(*yamlfile.Error); err != nil && !told {
				t.Errorf("%s %q: an error without advice: %v", spec.Name, s, err)
			}
		}
	})
}
