package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
)

// The database trusts its file: a page number that leads back to a parent sends
// it round until memory is used up, and one beyond the end is a fault. So the
// pages are checked before it is given the file. The layout is that of bbolt's
// version 2 (internal/common: meta.go, page.go, bucket.go), in native byte order.
const (
	boltMagic   = 0xed0cdaed
	boltVersion = 2

	pageHeader  = 16 // id 8, flags 2, count 2, overflow 4
	pageElement = 16 // leaf: flags, pos, ksize, vsize; branch: pos, ksize, pgid 8
	bucketHead  = 16 // root 8, sequence 8
	metaSize    = 64

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketFlag   = 0x01 // of a leaf element

	countInBody = 0xffff // of a free list: the true count comes first in the body
)

var (
	native = binary.NativeEndian

	errNotBolt = errors.New("it is not a database")
)

// boltMeta is what one of the file's two starting points says.
type boltMeta struct {
	pageSize             uint64
	root, freelist, high uint64 // page numbers; high is one past the last in use
	txid                 uint64
}

// readMeta reads the meta page at an offset; ok is false if its checksum is wrong.
func readMeta(data []byte, at uint64) (m boltMeta, ok bool) {
	if at+pageHeader+metaSize > uint64(len(data)) {
		return m, false
	}
	b := data[at+pageHeader:][:metaSize]
	sum := fnv.New64a()
	sum.Write(b[:56])
	if native.Uint32(b) != boltMagic || native.Uint32(b[4:]) != boltVersion || native.Uint64(b[56:]) != sum.Sum64() {
		return m, false
	}
	return boltMeta{
		pageSize: uint64(native.Uint32(b[8:])),
		root:     native.Uint64(b[16:]),
		freelist: native.Uint64(b[32:]),
		high:     native.Uint64(b[40:]),
		txid:     native.Uint64(b[48:]),
	}, true
}

// latestMeta finds the starting point that the database would take: the later
// of the two, or the one that a torn write has spared.
func latestMeta(data []byte) (boltMeta, error) {
	first, ok := readMeta(data, 0)
	if ok {
		if second, ok := readMeta(data, first.pageSize); ok && second.txid > first.txid {
			return second, nil
		}
		return first, nil
	}
	for size := uint64(1 << 10); size <= 1<<24; size <<= 1 {
		if second, ok := readMeta(data, size); ok && second.pageSize == size {
			return second, nil
		}
	}
	return boltMeta{}, errNotBolt
}

type verifier struct {
	data []byte
	boltMeta
	seen []bool // by page
}

// verifyFile checks that every page in use is where it should be, is reached
// once, and that nothing in it points outside of it.
func verifyFile(data []byte) error {
	m, err := latestMeta(data)
	if err != nil {
		return err
	}
	size := uint64(len(data))
	if m.pageSize < 1<<10 || m.pageSize > 1<<24 || m.high < 4 || m.high > size/m.pageSize {
		return fmt.Errorf("it is truncated: %d bytes, %d pages of %d were in use", size, m.high, m.pageSize)
	}
	v := &verifier{data, m, make([]bool, m.high)}
	if err := v.tree(m.root); err != nil {
		return err
	}
	return v.free()
}

// page claims a page with its overflow and returns it.
func (v *verifier) page(id uint64) ([]byte, error) {
	if id < 2 || id >= v.high {
		return nil, fmt.Errorf("page %d does not exist", id)
	}
	p := v.data[id*v.pageSize:]
	span := 1 + uint64(native.Uint32(p[12:]))
	if native.Uint64(p) != id || span > v.high-id {
		return nil, fmt.Errorf("page %d is damaged", id)
	}
	for i := id; i < id+span; i++ {
		if v.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		v.seen[i] = true
	}
	return p[:span*v.pageSize], nil
}

// tree follows the pages below and including one.
func (v *verifier) tree(id uint64) error {
	p, err := v.page(id)
	if err != nil {
		return err
	}
	var ok bool
	switch flags := native.Uint16(p[8:]); flags {
	case leafPage:
		ok, err = v.leaf(p)
	case branchPage:
		ok, err = v.branch(p)
	}
	if err == nil && !ok {
		return fmt.Errorf("page %d is damaged", id)
	}
	return err
}

func (v *verifier) branch(p []byte) (ok bool, err error) {
	count := int(native.Uint16(p[10:]))
	if count == 0 || pageHeader+count*pageElement > len(p) {
		return false, nil
	}
	var last []byte
	for i := range count {
		at := pageHeader + i*pageElement
		key, ok := part(p, at, native.Uint32(p[at:]), native.Uint32(p[at+4:]))
		if !ok || i > 0 && bytes.Compare(last, key) >= 0 {
			return false, nil
		}
		last = key
		if err := v.tree(native.Uint64(p[at+8:])); err != nil {
			return true, err
		}
	}
	return true, nil
}

func (v *verifier) leaf(p []byte) (ok bool, err error) {
	count := int(native.Uint16(p[10:]))
	if pageHeader+count*pageElement > len(p) {
		return false, nil
	}
	var last []byte
	for i := range count {
		at := pageHeader + i*pageElement
		flags, pos := native.Uint32(p[at:]), native.Uint32(p[at+4:])
		ksize, vsize := native.Uint32(p[at+8:]), native.Uint32(p[at+12:])
		both, ok := part(p, at, pos, ksize, vsize)
		if !ok || ksize == 0 || i > 0 && bytes.Compare(last, both[:ksize]) >= 0 {
			return false, nil
		}
		last = both[:ksize]
		if flags&bucketFlag == 0 {
			continue
		}
		if ok, err := v.bucket(both[ksize:]); err != nil || !ok {
			return ok, err
		}
	}
	return true, nil
}

// bucket follows a bucket, which is either a tree or, if small, a leaf inside of
// the value.
func (v *verifier) bucket(value []byte) (ok bool, err error) {
	if len(value) < bucketHead {
		return false, nil
	}
	if root := native.Uint64(value); root != 0 {
		return true, v.tree(root)
	}
	inner := value[bucketHead:]
	if len(inner) < pageHeader || native.Uint16(inner[8:]) != leafPage {
		return false, nil
	}
	return v.leaf(inner)
}

// part is what an element at an offset of its page says is at pos from there.
func part(p []byte, at int, pos uint32, sizes ...uint32) ([]byte, bool) {
	start := uint64(at) + uint64(pos)
	end := start
	for _, s := range sizes {
		end += uint64(s)
	}
	if end > uint64(len(p)) {
		return nil, false
	}
	return p[start:end], true
}

// free checks that no page is both in use and free to be overwritten.
func (v *verifier) free() error {
	p, err := v.page(v.freelist)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	count, ids := uint64(native.Uint16(p[10:])), p[pageHeader:]
	if count == countInBody {
		count, ids = native.Uint64(ids), ids[8:]
	}
	if native.Uint16(p[8:]) != freelistPage || count > uint64(len(ids)/8) {
		return errors.New("list of free pages is damaged")
	}
	free := make([]uint64, count)
	for i := range free {
		free[i] = native.Uint64(ids[i*8:])
		if free[i] < 2 || free[i] >= v.high || v.seen[free[i]] {
			return fmt.Errorf("page %d is free and in use", free[i])
		}
	}
	slices.Sort(free)
	if len(slices.Compact(free)) != len(free) {
		return errors.New("list of free pages is damaged")
	}
	return nil
}
