package datapath

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

// TestRootPeerOptionAmongOthers sends SYNs with options at random: valid ones, damaged ones, and bytes that are
// no options. The SYN-ACK has the peer option if the SYN had a valid one, by parseOptions, and otherwise has none.
func TestRootPeerOptionAmongOthers(t *testing.T) {
	p := newPeers(t)
	p.policy(t, peerOption(2000))
	l := p.listen(t, nil)
	wire := newRawTCP(t, p.near, netip.AddrPortFrom(p.far.V4, uint16(l.Addr().(*net.TCPAddr).Port)))
	r := rand.New(rand.NewPCG(1, 2))
	const (
		batch   = 32 // at once, which the queue of the listener holds
		batches = 40
	)
	seen := 0
	for range batches {
		sent := map[uint16][]byte{} // by source port
		waiting := map[uint16]bool{}
		for len(sent) < batch {
			options := randomOptions(r)
			wire.next++
			wire.send(t, wire.next, options)
			sent[wire.next] = options
			if _, whole := parseOptions(options); whole {
				waiting[wire.next] = true
			}
		}
		for end := time.Now().Add(30 * time.Second); len(waiting) > 0; {
			port, answer, ok := wire.receive(t)
			if !ok && time.Now().After(end) {
				t.Fatalf("%d of %d SYNs were not answered", len(waiting), batch)
			}
			options, is := sent[port]
			if !ok || !is {
				continue
			}
			delete(waiting, port)
			want, _ := parseOptions(options)
			if got, _ := parseOptions(answer); got != want {
				t.Errorf("SYN with options % x was answered with % x: want the peer option %t", options, answer, want)
			}
			if want {
				seen++
			}
		}
	}
	t.Logf("%d of %d SYNs had the option", seen, batch*batches)
	if seen < batches || seen > batch*batches/2 {
		t.Error("too few or too many to show anything")
	}
	if n, err := p.Counters(); err != nil || n.Peer.Seen < uint64(seen) || n.Peer.Sent != n.Peer.Seen {
		t.Errorf("counted are %+v, want %d; %v", n.Peer, seen, err)
	}
}

// parseOptions reports whether the options of a header (RFC 9293, 3.1) have a valid peer option, and whether all of
// them are whole: the kernel may drop a packet with others, and does since Linux 6.7. The first option with the identifier
// of the peer option (RFC 6994) decides.
func parseOptions(options []byte) (peer, whole bool) {
	for first := true; len(options) > 0; {
		switch kind := options[0]; {
		case kind == 0:
			return peer, true
		case kind == 1:
			options = options[1:]
		case len(options) < 2 || options[1] < 2 || int(options[1]) > len(options):
			return peer, false
		default:
			o := options[:options[1]]
			if first && kind == 254 && len(o) >= 4 && o[2] == 0x54 && o[3] == 0x50 {
				first = false
				peer = len(o) == 8 && o[4]>>4 == 1 && (o[6] != 0 || o[7] != 0)
			}
			options = options[len(o):]
		}
	}
	return peer, true
}

// randomOptions returns up to 40 bytes, a multiple of 4.
func randomOptions(r *rand.Rand) []byte {
	bytes := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for {
		var all []byte
		for range r.IntN(6) {
			peer := []byte{254, 8, 0x54, 0x50, 0x10, 20, 0, 40}
			one := [][]byte{
				{1}, {1, 1}, {2, 4, 5, 180}, {4, 2}, {3, 3, 7}, slices.Concat([]byte{8, 10}, bytes(8)),
				peer, peer, slices.Concat([]byte{254, 6, 0xf9, 0x89}, bytes(2)),
				slices.Concat([]byte{254, byte(r.IntN(14)), 0x54, 0x50}, bytes(r.IntN(8))),
				bytes(r.IntN(10)),
			}[r.IntN(11)]
			if one = slices.Clone(one); len(one) > 0 && r.IntN(4) == 0 {
				one[r.IntN(len(one))] ^= 1 << r.IntN(8)
			}
			all = append(all, one...)
		}
		all = append(all, make([]byte, (4-len(all)%4)%4)...)
		// The kernel drops a SYN with a signature (RFC 2385, RFC 5925) that it has no key for.
		if len(all) <= 40 && !slices.Contains(all, 19) && !slices.Contains(all, 29) {
			return all
		}
	}
}

// rawTCP sends SYNs that no socket knows. The host resets the connections that the peer offers.
type rawTCP struct {
	out, in  int // sockets
	from, to netip.AddrPort
	next     uint16 // source port
}

func newRawTCP(t *testing.T, near testenv.End, to netip.AddrPort) *rawTCP {
	t.Helper()
	w := &rawTCP{from: netip.AddrPortFrom(near.V4, 0), to: to, next: 10_000}
	near.NS.Do(t, func() {
		for fd, bits := range map[*int]int{&w.out: 0, &w.in: unix.SOCK_NONBLOCK} {
			var err error
			*fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|bits, unix.IPPROTO_TCP)
			must(t, err)
			t.Cleanup(func() { must(t, unix.Close(*fd)) })
		}
	})
	return w
}

func (w *rawTCP) send(t *testing.T, port uint16, options []byte) {
	t.Helper()
	b := make([]byte, 20, 60)
	binary.BigEndian.PutUint16(b[0:], port)
	binary.BigEndian.PutUint16(b[2:], w.to.Port())
	binary.BigEndian.PutUint32(b[4:], uint32(port)<<16)
	b[12] = byte((20 + len(options)) / 4 << 4)
	b[13] = 2 // SYN
	binary.BigEndian.PutUint16(b[14:], 65535)
	b = append(b, options...)
	binary.BigEndian.PutUint16(b[16:], w.checksum(b))
	must(t, unix.Sendto(w.out, b, 0, &unix.SockaddrInet4{Addr: w.to.Addr().As4()}))
}

// checksum is that of RFC 9293, 3.1, with the pseudo header.
func (w *rawTCP) checksum(b []byte) uint16 {
	from, to := w.from.Addr().As4(), w.to.Addr().As4()
	var sum uint32
	for _, part := range [][]byte{from[:], to[:], {0, unix.IPPROTO_TCP, 0, byte(len(b))}, b} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// receive returns the options of a SYN-ACK and the port it was sent to; false: there is none yet.
func (w *rawTCP) receive(t *testing.T) (port uint16, options []byte, ok bool) {
	t.Helper()
	b := make([]byte, 200)
	n, _, err := unix.Recvfrom(w.in, b, 0)
	if err == unix.EAGAIN {
		time.Sleep(time.Millisecond)
		return 0, nil, false
	}
	must(t, err)
	header := int(b[0]&0xf) * 4
	if n < header+20 {
		t.Fatal(fmt.Errorf("a packet of %d bytes", n))
	}
	b = b[header:n]
	if b[13] != 2|16 || binary.BigEndian.Uint16(b) != w.to.Port() { // SYN, ACK
		return 0, nil, false
	}
	return binary.BigEndian.Uint16(b[2:]), b[20 : int(b[12]>>4)*4], true
}
