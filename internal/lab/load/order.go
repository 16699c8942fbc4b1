package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// kind is what a client wants from a server connection.
type kind uint8

const (
	upload   kind = 1 // the client sends for a while, the server counts
	download kind = 2 // the server sends for a while, the client counts
	exchange kind = 3 // requests and replies of given sizes
)

// Limits of every order, so that no load outlives its purpose.
const (
	maxDuration = 10 * time.Minute
	maxMessage  = 64 << 20 // bytes of one request or reply
)

// order is the first thing that a client sends: what shall happen on the
// connection. For an exchange it is part of the first request.
type order struct {
	kind     kind
	duration time.Duration // upload, download
	request  uint32        // bytes, at least orderSize; exchange
	reply    uint32        // bytes; exchange
}

// orderSize is the length of an encoded order.
const orderSize = 24

// orderMagic tells a load client from anything else that connects.
const orderMagic = 0x74637031

func (o order) encode(b []byte) {
	binary.BigEndian.PutUint32(b, orderMagic)
	b[4] = byte(o.kind)
	binary.BigEndian.PutUint64(b[8:], uint64(o.duration))
	binary.BigEndian.PutUint32(b[16:], o.request)
	binary.BigEndian.PutUint32(b[20:], o.reply)
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
	}
	return o, o.check()
}

func (o order) check() error {
	switch {
	case o.kind < upload || o.kind > exchange:
		return fmt.Errorf("check order: kind %d is unknown", o.kind)
	case o.duration < 0 || o.duration > maxDuration:
		return fmt.Errorf("check order: duration %s is not in 0 to %s", o.duration, maxDuration)
	case o.request > maxMessage || o.reply > maxMessage:
		return fmt.Errorf("check order: %d and %d bytes, at most %d", o.request, o.reply, maxMessage)
	case o.kind == exchange && (o.request < orderSize || o.reply == 0):
		return fmt.Errorf("check order: request of %d and reply of %d bytes, at least %d and 1", o.request, o.reply, orderSize)
	}
	return nil
}

// tally is what the counting side of a bulk stream saw; the server sends it to
// the client of an upload.
type tally struct {
	Bytes   uint64        // in the order's duration
	Total   uint64        // until the end
	Elapsed time.Duration // from the first byte, at most the order's duration
	CC      ccName        // of the server's socket
}

type ccName [16]byte

func (t tally) write(w io.Writer) error { return binary.Write(w, binary.BigEndian, t) }

func (t *tally) read(r io.Reader) error { return binary.Read(r, binary.BigEndian, t) }
