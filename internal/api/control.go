package api

import (
	"math"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// ControlState is a tcp.ControlState as the API writes it. Fields that the control does not
// model are left out.
type ControlState struct {
	Mode       string  `json:"mode"` // by control: see tcp.ControlModes
	BW         uint64  `json:"bw_bytes_per_second,omitempty"`
	MinRTT     uint32  `json:"min_rtt_us,omitempty"`
	InflightHi *uint32 `json:"inflight_hi,omitempty"` // packets
	InflightLo *uint32 `json:"inflight_lo,omitempty"` // packets
	Alpha      float64 `json:"alpha,omitempty"`       // 0 to 1: share of packets marked, smoothed
	WMax       uint32  `json:"w_max,omitempty"`       // packets
	ECN        bool    `json:"ecn,omitempty"`         // marks are answered
	FullPipe   bool    `json:"full_pipe,omitempty"`   // the path has been filled once
}

// fromControl returns the state in s, nil if there is none.
func fromControl(s *tcp.Sample) *ControlState {
	c := &s.Control
	if !c.Known() {
		return nil
	}
	return &ControlState{
		Mode: s.ControlMode(), BW: c.BW, MinRTT: c.MinRTT,
		InflightHi: bound(c.InflightHi), InflightLo: bound(c.InflightLo),
		Alpha: float64(c.Alpha) / tcp.AlphaOne, WMax: c.WMax,
		ECN: c.Has(tcp.ControlECN), FullPipe: c.Has(tcp.ControlFullPipe),
	}
}

// state returns the state that the control cc reports; the zero value for nil.
func (c *ControlState) state(cc tcp.CC) tcp.ControlState {
	if c == nil {
		return tcp.ControlState{}
	}
	s := tcp.ControlState{
		BW: c.BW, MinRTT: c.MinRTT, InflightHi: packets(c.InflightHi), InflightLo: packets(c.InflightLo),
		Alpha: uint32(math.Round(c.Alpha * tcp.AlphaOne)), WMax: c.WMax, Flags: tcp.ControlKnown,
	}
	s.Mode, _ = tcp.ParseControlMode(cc, c.Mode)
	if c.ECN {
		s.Flags |= tcp.ControlECN
	}
	if c.FullPipe {
		s.Flags |= tcp.ControlFullPipe
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
