package api

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// CCState is a tcp.CCState as the API writes it. Fields that the congestion control does not
// model are left out.
type CCState struct {
	Mode       string  `json:"mode"` // by control: see congestion.ModeName
	BW         uint64  `json:"bw_bytes_per_second,omitempty"`
	MinRTT     uint32  `json:"min_rtt_us,omitempty"`
	InflightHi *uint32 `json:"inflight_hi,omitempty"` // packets
	InflightLo *uint32 `json:"inflight_lo,omitempty"` // packets
	Alpha      float64 `json:"alpha,omitempty"`       // 0 to 1: share of packets marked, smoothed
	WMax       uint32  `json:"w_max,omitempty"`       // packets
	ECN        bool    `json:"ecn,omitempty"`         // marks are answered
	FullPipe   bool    `json:"full_pipe,omitempty"`   // the path has been filled once
}

// fromCCState returns the state in s, nil if there is none.
func fromCCState(s *tcp.Sample) *CCState {
	c := &s.CCState
	if !c.Known() {
		return nil
	}
	return &CCState{
		Mode: congestion.ModeName(s.CC, c), BW: c.BW, MinRTT: c.MinRTT,
		InflightHi: bound(c.InflightHi), InflightLo: bound(c.InflightLo),
		Alpha: float64(c.Alpha) / tcp.AlphaOne, WMax: c.WMax,
		ECN: c.Has(tcp.CCFlagECN), FullPipe: c.Has(tcp.CCFlagFullPipe),
	}
}

// state returns the state that cc reports; the zero value for nil.
func (c *CCState) state(cc tcp.CC) tcp.CCState {
	if c == nil {
		return tcp.CCState{}
	}
	s := tcp.CCState{
		BW: c.BW, MinRTT: c.MinRTT, InflightHi: packets(c.InflightHi), InflightLo: packets(c.InflightLo),
		Alpha: uint32(math.Round(c.Alpha * tcp.AlphaOne)), WMax: c.WMax, Flags: tcp.CCFlagKnown,
	}
	s.Mode, _ = congestion.ParseMode(cc, c.Mode)
	if c.ECN {
		s.Flags |= tcp.CCFlagECN
	}
	if c.FullPipe {
		s.Flags |= tcp.CCFlagFullPipe
	}
	return s
}

func bound(packets uint32) *uint32 {
	if packets == tcp.NoBound {
		return nil
	}
	return &packets
}

func packets(bound *uint32) uint32 {
	if bound == nil {
		return tcp.NoBound
	}
	return *bound
}
