package link

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// packet is a message as the kernel sends it, with the attributes in the kernel's order.
func packet(id, mark, priority uint32) []byte {
	be := binary.BigEndian
	m := message(nfqPacket, 0, 7).
		attr(nfqaPacketHdr, append(be.AppendUint32(nil, id), 0x08, 0x00, 0)).
		attr(5, be.AppendUint32(nil, 3)) // NFQA_IFINDEX_INDEV
	if mark != 0 {
		m = m.attr(nfqaMark, be.AppendUint32(nil, mark))
	}
	if priority != 0 {
		m = m.attr(nfqaPriority, be.AppendUint32(nil, priority))
	}
	return m.attr(13, be.AppendUint32(nil, 1500)).finish() // NFQA_CAP_LEN
}

func TestParsePacket(t *testing.T) {
	for _, want := range []packetMessage{{1, 0, 0}, {0xffffffff, 0x80000001, 0xe0000002}} {
		whole := packet(want.id, want.mark, want.priority)
		if got, ok := parsePacket(whole); !ok || got != want {
			t.Errorf("read %+v, %v, want %+v", got, ok, want)
		}
		for n := range whole[:unix.NLMSG_HDRLEN+4+4+7] {
			if _, ok := parsePacket(whole[:n]); ok {
				t.Errorf("the first %d bytes were accepted as a packet", n)
			}
		}
	}
	other := packet(1, 2, 3)
	binary.NativeEndian.PutUint16(other[4:], unix.NLMSG_ERROR)
	if _, ok := parsePacket(other); ok {
		t.Error("an error message was accepted as a packet")
	}
}

func FuzzParsePacket(f *testing.F) {
	f.Add(packet(1, 2, 3))
	f.Add(packet(3, 0, 0)[:30])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, m []byte) {
		if _, ok := parsePacket(m); ok && len(m) < unix.NLMSG_HDRLEN+12 {
			t.Errorf("%x was accepted as a packet", m)
		}
	})
}

func TestVerdict(t *testing.T) {
	v := newVerdict(nfqVerdictBatch, 7)
	if got := int(binary.NativeEndian.Uint32(v)); got != len(v) {
		t.Errorf("the message is %d bytes long, its header says %d", len(v), got)
	}
	if queue := binary.BigEndian.Uint16(v[unix.NLMSG_HDRLEN+2:]); queue != 7 {
		t.Errorf("queue is %d, want 7", queue)
	}
	if accept := binary.BigEndian.Uint32(v[len(v)-8:]); accept != nfAccept {
		t.Errorf("verdict is %d, want %d", accept, nfAccept)
	}
}

func TestQueueDrops(t *testing.T) {
	const table = "    2   4711     0 1     0     0     0        1  1\n" +
		"   13   4712     5 1     0    11    22      333  1\n"
	if got, err := queueDrops(table, 13); got != 33 || err != nil {
		t.Errorf("drops are %d, %v, want 33", got, err)
	}
	if _, err := queueDrops(table, 3); err == nil {
		t.Error("found queue 3, which does not exist")
	}
	if _, err := queueDrops("2 x\n", 2); err == nil {
		t.Error("an invalid table was accepted")
	}
}
