package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// Key names what a record is about.
type Key struct {
	Rule   string
	Scope  uint64 // network namespace cookie; 0 is shared
	Prefix netip.Prefix
}

// Record is what is known about one path.
type Record struct {
	Rule   string
	Scope  uint64 // network namespace cookie; 0 is shared
	Prefix netip.Prefix
	Belief []byte // opaque
	Last   int64  // Unix nanoseconds of the latest use
}

// Key returns the record's key.
func (r *Record) Key() Key { return Key{r.Rule, r.Scope, r.Prefix} }

const (
	maxRule   = 1 << 10 // bytes
	maxBelief = 1 << 16 // bytes; a belief in JSON has about 200 per arm
)

// A key is the scope (8 bytes, so that scopes sort together), the length of the
// prefix (1), the prefix, and the rule.
func appendKey(b []byte, k Key) ([]byte, error) {
	if !k.Prefix.IsValid() {
		return nil, fmt.Errorf("encode key of rule %q: invalid prefix", k.Rule)
	}
	if len(k.Rule) > maxRule {
		return nil, fmt.Errorf("encode key: a rule's name has %d bytes, at most %d fit", len(k.Rule), maxRule)
	}
	prefix, err := k.Prefix.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("encode key of rule %q: %w", k.Rule, err)
	}
	b = binary.BigEndian.AppendUint64(b, k.Scope)
	b = append(b, byte(len(prefix)))
	b = append(b, prefix...)
	return append(b, k.Rule...), nil
}

var errKey = errors.New("malformed key")

func parseKey(b []byte) (Key, error) {
	if len(b) < 9 || len(b) < 9+int(b[8]) {
		return Key{}, errKey
	}
	end := 9 + int(b[8])
	k := Key{Scope: binary.BigEndian.Uint64(b), Rule: string(b[end:])}
	if err := k.Prefix.UnmarshalBinary(b[9:end]); err != nil || !k.Prefix.IsValid() {
		return Key{}, errKey
	}
	return k, nil
}

// castagnoli has hardware support on amd64 and arm64.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// headLen is the checksum (4 bytes, over the key and the rest) and Last (8).
const headLen = 12

func appendValue(b, key []byte, r *Record) ([]byte, error) {
	if len(r.Belief) > maxBelief {
		return nil, fmt.Errorf("encode belief of %s: %d bytes, at most %d fit", r.Prefix, len(r.Belief), maxBelief)
	}
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Last))
	b = append(b, r.Belief...)
	binary.LittleEndian.PutUint32(b[start:], checksum(key, b[start+4:]))
	return b, nil
}

var errChecksum = errors.New("checksum mismatch")

// parseRecord returns a record whose Belief is part of value.
func parseRecord(key, value []byte) (Record, error) {
	if len(value) < headLen || binary.LittleEndian.Uint32(value) != checksum(key, value[4:]) {
		return Record{}, errChecksum
	}
	k, err := parseKey(key)
	if err != nil {
		return Record{}, err
	}
	return Record{
		Rule: k.Rule, Scope: k.Scope, Prefix: k.Prefix,
		Last:   lastOf(value),
		Belief: value[headLen:],
	}, nil
}

func lastOf(value []byte) int64 { return int64(binary.LittleEndian.Uint64(value[4:])) }

func checksum(key, rest []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, rest)
}
