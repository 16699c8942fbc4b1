package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// errSample is returned for a record that is not a sample of this version.
var errSample = errors.New("not a sample")

const sampleSize = int(unsafe.Sizeof(abiConnSample{}))

// decode turns one ring buffer record into s. It does not allocate, and does not keep raw.
// offset is wallOffset; ccs is the table that arms index.
func decode(s *tcp.Sample, raw []byte, offset int64, ccs *ccTable) error {
	// The ring buffer pads records to 8 bytes.
	if len(raw) < sampleSize || len(raw) > sampleSize+7 {
		return fmt.Errorf("%w: %d bytes, want %d", errSample, len(raw), sampleSize)
	}
	var r abiConnSample
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&r)), sampleSize), raw)

	kind := tcp.Kind(r.Kind)
	if kind < tcp.KindClose || kind > tcp.KindFailedConnect {
		return fmt.Errorf("%w: kind %d", errSample, r.Kind)
	}
	*s = tcp.Sample{
		Kind:     kind,
		Flags:    tcp.Flags(r.Flags) & tcp.Flags(abiSampleFlagsF_SAMPLE),
		At:       int64(r.AtNs) + offset,
		Cookie:   r.Cookie,
		NetNS:    r.Netns,
		Cgroup:   r.Cgroup,
		Local:    netip.AddrPortFrom(netip.AddrFrom16(r.Local).Unmap(), r.LocalPort),
		Remote:   netip.AddrPortFrom(netip.AddrFrom16(r.Remote).Unmap(), r.RemotePort),
		Class:    r.Class,
		PolicyID: r.PolicyId,
		Arm:      ccs.name(r.Arm),
		CC:       tcp.CC(r.Cc),

		StandsFor: max(1, r.StandsFor),

		Duration:  micros(r.DurationUs),
		Connect:   micros(uint64(r.ConnectUs)),
		Busy:      micros(r.BusyUs),
		RwndLtd:   micros(r.RwndLimitedUs),
		SndbufLtd: micros(r.SndbufLimitedUs),

		BytesAcked:    r.BytesAcked,
		BytesReceived: r.BytesReceived,
		BytesRetrans:  r.BytesRetrans,
		SegsOut:       r.SegsOut,
		SegsIn:        r.SegsIn,
		DataSegsIn:    r.DataSegsIn,
		DataSegsOut:   r.DataSegsOut,
		Retrans:       r.TotalRetrans,
		Delivered:     r.Delivered,
		DeliveredCE:   r.DeliveredCe,
		Lost:          r.Lost,
		RTOs:          r.Rtos,
		DSACKs:        r.Dsacks,
		Undone:        r.Undone,

		MinRTT:       r.MinRttUs,
		SRTT:         r.SrttUs,
		RTTVar:       r.RttvarUs,
		Cwnd:         r.Cwnd,
		Ssthresh:     r.Ssthresh,
		RTOMin:       micros(uint64(r.RtoMinUs)),
		DelackMax:    micros(uint64(r.DelackMaxUs)),
		MSS:          r.Mss,
		DeliveryRate: r.DeliveryRate,
		Flows:        r.Flows,
		InitCwnd:     r.InitCwnd,
		InitLost:     r.InitLost,
		ResumeCwnd:   r.ResumeCwnd,

		MaxPacingRate: r.MaxPacingRate,
		LossRTT:       r.LossRttUs,

		PeerDelack:  micros(uint64(r.PeerDelackUs)),
		PeerReceive: r.PeerReceive,

		CCState: tcp.CCState{
			BW:         r.CcState.Bw,
			MinRTT:     r.CcState.MinRttUs,
			InflightHi: r.CcState.InflightHi,
			InflightLo: r.CcState.InflightLo,
			Alpha:      r.CcState.Alpha,
			WMax:       r.CcState.W_max,
			Mode:       r.CcState.Mode,
			Flags:      tcp.CCFlags(r.CcState.Flags) & tcp.AllCCFlags,
		},
	}
	if s.Flags&tcp.FlagDefaultArm != 0 {
		s.Arm = s.CC
	}
	s.End = end(kind, syscall.Errno(r.Err), abiClosedBits(r.Closed))
	return nil
}

// maxMicros bounds a duration to the range of time.Duration.
const maxMicros = uint64(1<<63-1) / 1000

func micros(us uint64) time.Duration {
	return time.Duration(min(us, maxMicros)) * time.Microsecond
}

// end derives how a connection ended from the last state of its socket. If err is 0, the
// bits on FIN and acknowledgement decide.
func end(kind tcp.Kind, err syscall.Errno, closed abiClosedBits) tcp.End {
	switch {
	case kind == tcp.KindInterval:
		return tcp.EndNone
	case err == syscall.ECONNREFUSED:
		return tcp.EndRefused
	case kind == tcp.KindFailedConnect && err == syscall.ECONNRESET:
		return tcp.EndAborted // tcp_disconnect in SYN_SENT; a RST would have given ECONNREFUSED
	case err == syscall.ECONNRESET || err == syscall.EPIPE:
		return tcp.EndReset
	case err == syscall.ETIMEDOUT:
		return tcp.EndTimeout
	case err == syscall.ECONNABORTED || closed&abiClosedBitsCLOSED_RST_SENT != 0:
		return tcp.EndAborted
	case err != 0:
		return tcp.EndOther
	case kind == tcp.KindFailedConnect:
		return tcp.EndAborted
	case closed&abiClosedBitsCLOSED_FIN_SEEN != 0, closed&abiClosedBitsCLOSED_ALL_ACKED != 0:
		return tcp.EndFin
	}
	return tcp.EndAborted
}
