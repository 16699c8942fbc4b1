package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Key identifies the path of a record.
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

// key returns the record's key.
func (r *Record) key() Key { return Key{r.Rule, r.Scope, r.Prefix} }

const (
	maxRule   = 1 << 10 // bytes
	maxBelief = 1 << 16 // bytes; a belief in JSON has about 200 per arm
)

// A key is the scope (8 bytes), the length of the prefix (1), the prefix, and the rule.
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
	k := Key{Scope: binary.BigEndian.Uint64(b), Rule: ruleOf(b)}
	if err := k.Prefix.UnmarshalBinary(b[9:end]); err != nil || !k.Prefix.IsValid() {
		return Key{}, errKey
	}
	return k, nil
}

// ruleOf is the rule of a key.
func ruleOf(key []byte) string { return string(key[9+int(key[8]):]) }

// isScoped reports whether a key is of a single network namespace.
func isScoped(key []byte) bool { return binary.BigEndian.Uint64(key) != 0 }

// A record in the file is the length of its key (2 bytes) and of its belief (4), the
// latest use (8), the key, and the belief.
const (
	recordHead = 14
	minKey     = 9
	maxKey     = minKey + 32 + maxRule
)

// putHead writes the head of a record into the first bytes of b.
func putHead(b []byte, key, belief int, last int64) {
	binary.LittleEndian.PutUint16(b, uint16(key))
	binary.LittleEndian.PutUint32(b[2:], uint32(belief))
	binary.LittleEndian.PutUint64(b[6:], uint64(last))
}

func readHead(b []byte) (key, belief int, last int64) {
	return int(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint32(b[2:])), int64(binary.LittleEndian.Uint64(b[6:]))
}
