package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// kind is what a client asks of a server connection.
type kind uint8

const (
	upload   kind = 1 // the client sends for a while, the server counts
	download kind = 2 // the server sends for a while, the client counts
	exchange kind = 3 // requests and replies of given sizes
	transfer kind = 4 // the server sends a number of bytes and ends
	mux      kind = 5 // interleaved replies, see mux.go
)

// Limits of every order and spec, so that no load goes on without end.
const (
	MaxDuration = 10 * time.Minute
	MaxMessage  = 1 << 30 // bytes of one request or reply
)

// order is the first message of a client: what should happen on the connection. For an
// exchange it is part of the first request.
type order struct {
	kind     kind
	duration time.Duration // upload, download
	request  uint32        // bytes; exchange: at least orderSize, mux: at least muxHead
	reply    uint32        // bytes; exchange, transfer
	// account is the number under which the server keeps an account of the connection,
	// with a point every sample; 0 is no account.
	account uint64
	sample  time.Duration
	// cc is the congestion control that the serving application sets on the connection;
	// empty is none.
	cc ccName
}

// orderSize is the length of an encoded order.
const orderSize = 56

// MinRequest is the least size in bytes of a request of RPC and churn, which
// begins with an order.
const MinRequest = orderSize

// orderMagic distinguishes a load client from anything else that connects.
const orderMagic = 0x74637032

func (o order) encode(b []byte) {
	binary.BigEndian.PutUint32(b, orderMagic)
	b[4] = byte(o.kind)
	binary.BigEndian.PutUint64(b[8:], uint64(o.duration))
	binary.BigEndian.PutUint32(b[16:], o.request)
	binary.BigEndian.PutUint32(b[20:], o.reply)
	binary.BigEndian.PutUint64(b[24:], o.account)
	binary.BigEndian.PutUint64(b[32:], uint64(o.sample))
	copy(b[40:], o.cc[:])
}

func decodeOrder(b []byte) (order, error) {
	if binary.BigEndian.Uint32(b) != orderMagic {
		return order{}, errors.New("read order: not a load client")
	}
	o := order{
		kind:     kind(b[4]),
		duration: time.Duration(binary.BigEndian.Uint64(b[8:])),
		request:  binary.BigEndian.Uint32(b[16:]),
		reply:    binary.BigEndian.Uint32(b[20:]),
		account:  binary.BigEndian.Uint64(b[24:]),
		sample:   time.Duration(binary.BigEndian.Uint64(b[32:])),
		cc:       ccName(b[40:orderSize]),
	}
	return o, o.check()
}

func (o order) check() error {
	switch {
	case o.kind < upload || o.kind > mux:
		return fmt.Errorf("check order: kind %d is unknown", o.kind)
	case o.duration < 0 || o.duration > MaxDuration:
		return fmt.Errorf("check order: duration %s is not in 0 to %s", o.duration, MaxDuration)
	case o.request > MaxMessage || o.reply > MaxMessage:
		return fmt.Errorf("check order: %d and %d bytes, at most %d", o.request, o.reply, MaxMessage)
	case o.kind == exchange && (o.request < orderSize || o.reply == 0):
		return fmt.Errorf("check order: request of %d and reply of %d bytes, at least %d and 1", o.request, o.reply, orderSize)
	case o.kind == mux && (o.request < muxHead || o.request > chunk):
		return fmt.Errorf("check order: request of %d bytes, at least %d and at most %d", o.request, muxHead, chunk)
	case o.sample != 0 && o.sample < MinSample:
		return fmt.Errorf("check order: points every %s, minimum %s", o.sample, MinSample)
	}
	return nil
}

// tally is what the receiving side of a bulk stream counted. The server sends it to the
// client at the end of an upload, and at the beginning of a download with only CC set.
type tally struct {
	Bytes   uint64        // in the order's duration
	Total   uint64        // until the end
	Elapsed time.Duration // from the start of counting to the last byte, at most the order's duration
	CC      ccName        // of the server's socket
}

type ccName [16]byte // TCP_CA_NAME_MAX

func (t tally) write(w io.Writer) error { return binary.Write(w, binary.BigEndian, t) }

func (t *tally) read(r io.Reader) error { return binary.Read(r, binary.BigEndian, t) }
