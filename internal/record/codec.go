package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// formatVersion is the version of the format. No other is read.
const formatVersion = 7

// Size is the length of one encoded sample in bytes.
const Size = 344

// Offsets of a record. Times are nanoseconds; everything is little-endian.
const (
	offKind       = 0   // u8
	offEnd        = 1   // u8
	offFlags      = 2   // u16
	offClass      = 4   // u32
	offAt         = 8   // i64
	offCookie     = 16  // u64
	offNetNS      = 24  // u64
	offCgroup     = 32  // u64
	offLocal      = 40  // 16 bytes; IPv4 in the first four
	offRemote     = 56  // 16 bytes
	offLocalPort  = 72  // u16
	offRemotePort = 74  // u16
	offLocalFam   = 76  // u8: 0 none, 4, 6
	offRemoteFam  = 77  // u8
	offResume     = 78  // u16
	offPolicy     = 80  // u32
	offSegsOut    = 84  // 8 x u32
	offArm        = 116 // 16 bytes
	offCC         = 132 // 16 bytes
	offMinRTT     = 148 // 6 x u32
	offStandsFor  = 172 // u32: connections besides the sample's own
	offDuration   = 176 // 5 x i64
	offBytes      = 216 // 3 x u64
	offRate       = 240 // u64
	offCCState    = 248 // u64, 5 x u32, u8 mode, u8 flags

	offUndone   = 278 // i16
	offFlows    = 280 // u32
	offInitCwnd = 284 // 2 x u16
	offDSACKs   = 288 // u32
	offRTOMin   = 292 // i64
	offPacing   = 300 // u64
	offLossRTT  = 308 // u32
	offDataIn   = 312 // u32
	offDelack   = 316 // i64
	offPeer     = 324 // i64, u64

	crc = 4 // u32 at the end: CRC-32C of all before it
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian

	errChecksum = errors.New("checksum does not match: the record is damaged")
)

// encode writes s to b. A zone of an address is not kept: no sample has one.
func encode(b *[Size]byte, s *tcp.Sample) {
	b[offKind], b[offEnd] = byte(s.Kind), byte(s.End)
	le.PutUint16(b[offFlags:], uint16(s.Flags))
	le.PutUint32(b[offClass:], s.Class)
	le.PutUint64(b[offAt:], uint64(s.At))
	le.PutUint64(b[offCookie:], s.Cookie)
	le.PutUint64(b[offNetNS:], s.NetNS)
	le.PutUint64(b[offCgroup:], s.Cgroup)
	b[offLocalFam] = putAddr((*[16]byte)(b[offLocal:]), s.Local.Addr())
	b[offRemoteFam] = putAddr((*[16]byte)(b[offRemote:]), s.Remote.Addr())
	le.PutUint16(b[offLocalPort:], s.Local.Port())
	le.PutUint16(b[offRemotePort:], s.Remote.Port())
	le.PutUint32(b[offPolicy:], s.PolicyID)
	copy(b[offArm:], s.Arm[:])
	copy(b[offCC:], s.CC[:])

	put32(b[offSegsOut:], s.SegsOut, s.SegsIn, s.DataSegsOut, s.Retrans)
	put32(b[offSegsOut+16:], s.Delivered, s.DeliveredCE, s.Lost, s.RTOs)
	put32(b[offMinRTT:], s.MinRTT, s.SRTT, s.RTTVar, s.Cwnd)
	le.PutUint32(b[offMinRTT+16:], s.Ssthresh)
	le.PutUint32(b[offMinRTT+20:], s.MSS)
	le.PutUint32(b[offStandsFor:], max(1, s.StandsFor)-1)
	le.PutUint64(b[offDuration:], uint64(s.Duration))
	le.PutUint64(b[offDuration+8:], uint64(s.Connect))
	le.PutUint64(b[offDuration+16:], uint64(s.Busy))
	le.PutUint64(b[offDuration+24:], uint64(s.RwndLtd))
	le.PutUint64(b[offDuration+32:], uint64(s.SndbufLtd))
	le.PutUint64(b[offBytes:], s.BytesAcked)
	le.PutUint64(b[offBytes+8:], s.BytesReceived)
	le.PutUint64(b[offBytes+16:], s.BytesRetrans)
	le.PutUint64(b[offRate:], s.DeliveryRate)
	encodeCCState((*[30]byte)(b[offCCState:]), &s.CCState)
	le.PutUint32(b[offFlows:], s.Flows)
	le.PutUint16(b[offInitCwnd:], s.InitCwnd)
	le.PutUint16(b[offInitCwnd+2:], s.InitLost)
	le.PutUint16(b[offResume:], s.ResumeCwnd)
	le.PutUint32(b[offDSACKs:], s.DSACKs)
	le.PutUint16(b[offUndone:], uint16(s.Undone))
	le.PutUint64(b[offRTOMin:], uint64(s.RTOMin))
	le.PutUint64(b[offPacing:], s.MaxPacingRate)
	le.PutUint32(b[offLossRTT:], s.LossRTT)
	le.PutUint32(b[offDataIn:], s.DataSegsIn)
	le.PutUint64(b[offDelack:], uint64(s.DelackMax))
	le.PutUint64(b[offPeer:], uint64(s.PeerDelack))
	le.PutUint64(b[offPeer+8:], s.PeerReceive)
	le.PutUint32(b[Size-crc:], sum(b[:]))
}

func encodeCCState(b *[30]byte, c *tcp.CCState) {
	le.PutUint64(b[0:], c.BW)
	put32(b[8:], c.MinRTT, c.InflightHi, c.InflightLo, c.Alpha)
	le.PutUint32(b[24:], c.WMax)
	b[28], b[29] = c.Mode, byte(c.Flags)
}

func sum(b []byte) uint32 { return crc32.Checksum(b[:len(b)-crc], castagnoli) }

// decode reads b, of Size, into s. Every field of s is written. What decodes without
// error encodes to the same bytes.
func decode(s *tcp.Sample, b []byte) error {
	if sum(b) != le.Uint32(b[len(b)-crc:]) {
		return errChecksum
	}
	s.Kind, s.End = tcp.Kind(b[offKind]), tcp.End(b[offEnd])
	if s.Kind < tcp.KindClose || s.Kind > tcp.KindFailedConnect || s.End > tcp.EndOther {
		return fmt.Errorf("kind %d, end %d: unknown to this version", b[offKind], b[offEnd])
	}
	local, okL := getAddr((*[16]byte)(b[offLocal:]), b[offLocalFam])
	remote, okR := getAddr((*[16]byte)(b[offRemote:]), b[offRemoteFam])
	if !okL || !okR {
		return fmt.Errorf("address of family %d or %d is not valid", b[offLocalFam], b[offRemoteFam])
	}
	others := le.Uint32(b[offStandsFor:])
	if others == 1<<32-1 {
		return fmt.Errorf("a sample that stands for %d others: out of range", others)
	}
	s.StandsFor = others + 1
	decodeCCState(&s.CCState, (*[30]byte)(b[offCCState:]))
	s.Local = netip.AddrPortFrom(local, le.Uint16(b[offLocalPort:]))
	s.Remote = netip.AddrPortFrom(remote, le.Uint16(b[offRemotePort:]))
	s.Flags = tcp.Flags(le.Uint16(b[offFlags:]))
	s.Class = le.Uint32(b[offClass:])
	s.At = int64(le.Uint64(b[offAt:]))
	s.Cookie = le.Uint64(b[offCookie:])
	s.NetNS = le.Uint64(b[offNetNS:])
	s.Cgroup = le.Uint64(b[offCgroup:])
	s.PolicyID = le.Uint32(b[offPolicy:])
	copy(s.Arm[:], b[offArm:])
	copy(s.CC[:], b[offCC:])
	decodeCounters(s, b)
	return nil
}

func decodeCCState(c *tcp.CCState, b *[30]byte) {
	*c = tcp.CCState{
		BW: le.Uint64(b[0:]), MinRTT: le.Uint32(b[8:]), InflightHi: le.Uint32(b[12:]), InflightLo: le.Uint32(b[16:]),
		Alpha: le.Uint32(b[20:]), WMax: le.Uint32(b[24:]), Mode: b[28], Flags: tcp.CCFlags(b[29]),
	}
}

func decodeCounters(s *tcp.Sample, b []byte) {
	s.Duration = time.Duration(le.Uint64(b[offDuration:]))
	s.Connect = time.Duration(le.Uint64(b[offDuration+8:]))
	s.Busy = time.Duration(le.Uint64(b[offDuration+16:]))
	s.RwndLtd = time.Duration(le.Uint64(b[offDuration+24:]))
	s.SndbufLtd = time.Duration(le.Uint64(b[offDuration+32:]))
	s.BytesAcked = le.Uint64(b[offBytes:])
	s.BytesReceived = le.Uint64(b[offBytes+8:])
	s.BytesRetrans = le.Uint64(b[offBytes+16:])
	s.SegsOut = le.Uint32(b[offSegsOut:])
	s.SegsIn = le.Uint32(b[offSegsOut+4:])
	s.DataSegsOut = le.Uint32(b[offSegsOut+8:])
	s.Retrans = le.Uint32(b[offSegsOut+12:])
	s.Delivered = le.Uint32(b[offSegsOut+16:])
	s.DeliveredCE = le.Uint32(b[offSegsOut+20:])
	s.Lost = le.Uint32(b[offSegsOut+24:])
	s.RTOs = le.Uint32(b[offSegsOut+28:])
	s.MinRTT = le.Uint32(b[offMinRTT:])
	s.SRTT = le.Uint32(b[offMinRTT+4:])
	s.RTTVar = le.Uint32(b[offMinRTT+8:])
	s.Cwnd = le.Uint32(b[offMinRTT+12:])
	s.Ssthresh = le.Uint32(b[offMinRTT+16:])
	s.MSS = le.Uint32(b[offMinRTT+20:])
	s.DeliveryRate = le.Uint64(b[offRate:])
	s.Flows = le.Uint32(b[offFlows:])
	s.InitCwnd = le.Uint16(b[offInitCwnd:])
	s.InitLost = le.Uint16(b[offInitCwnd+2:])
	s.ResumeCwnd = le.Uint16(b[offResume:])
	s.DSACKs = le.Uint32(b[offDSACKs:])
	s.Undone = int16(le.Uint16(b[offUndone:]))
	s.RTOMin = time.Duration(le.Uint64(b[offRTOMin:]))
	s.MaxPacingRate = le.Uint64(b[offPacing:])
	s.LossRTT = le.Uint32(b[offLossRTT:])
	s.DataSegsIn = le.Uint32(b[offDataIn:])
	s.DelackMax = time.Duration(le.Uint64(b[offDelack:]))
	s.PeerDelack = time.Duration(le.Uint64(b[offPeer:]))
	s.PeerReceive = le.Uint64(b[offPeer+8:])
}

func put32(b []byte, v0, v1, v2, v3 uint32) {
	_ = b[15]
	le.PutUint32(b, v0)
	le.PutUint32(b[4:], v1)
	le.PutUint32(b[8:], v2)
	le.PutUint32(b[12:], v3)
}

// putAddr writes a and returns its family.
func putAddr(b *[16]byte, a netip.Addr) byte {
	switch {
	case a.Is4():
		*b = [16]byte{}
		v4 := a.As4()
		copy(b[:], v4[:])
		return 4
	case a.Is6():
		*b = a.As16()
		return 6
	}
	*b = [16]byte{}
	return 0
}

func getAddr(b *[16]byte, family byte) (a netip.Addr, ok bool) {
	switch family {
	case 0:
		return a, *b == [16]byte{}
	case 4:
		return netip.AddrFrom4([4]byte(b[:4])), [12]byte(b[4:]) == [12]byte{}
	case 6:
		return netip.AddrFrom16(*b), true
	}
	return a, false
}
