package cc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// name is the name that users, rules and the kernel use.
func (o Control) name() string { return o.CC.String() }

// forAuto reports whether it is a user's control that rules use which do not name it (arms: auto).
func (o Control) forAuto() bool { return o.User && !o.ByName }

// The kernel's types of a congestion control, and of the value of its map.
const (
	opsType   = "tcp_congestion_ops"
	valueType = "bpf_struct_ops_" + opsType
)

// flagNeedsECN is TCP_CONG_NEEDS_ECN (include/net/tcp.h).
const flagNeedsECN = 2

// version of an object is the first 12 hexadecimal digits of its SHA-256.
func version(elf []byte) string {
	sum := sha256.Sum256(elf)
	return hex.EncodeToString(sum[:6])
}

func (o Control) spec() (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(o.elf))
	if err != nil {
		return nil, fmt.Errorf("not an eBPF ELF object: %w", err)
	}
	return spec, nil
}

// opsMap finds the one map of a congestion control.
func opsMap(spec *ebpf.CollectionSpec) (*ebpf.MapSpec, error) {
	var found *ebpf.MapSpec
	for _, m := range spec.Maps {
		if m.Type != ebpf.StructOpsMap {
			continue
		}
		if m.Value.TypeName() != opsType {
			return nil, fmt.Errorf("%s is a struct %s: want a struct %s", m.Name, m.Value.TypeName(), opsType)
		}
		if found != nil {
			return nil, errors.New("it has more than one congestion control: want exactly one")
		}
		found = m
	}
	if found == nil {
		return nil, fmt.Errorf("it has no congestion control: want one struct %s in section \".struct_ops.link\"", opsType)
	}
	return found, nil
}

// member returns the bytes of a member of the control's struct in the object.
func member(m *ebpf.MapSpec, name string) ([]byte, error) {
	st, isStruct := btf.As[*btf.Struct](m.Value)
	if !isStruct || len(m.Contents) != 1 {
		return nil, fmt.Errorf("%s has no contents", m.Name)
	}
	value, _ := m.Contents[0].Value.([]byte)
	for _, f := range st.Members {
		size, err := btf.Sizeof(f.Type)
		off := int(f.Offset.Bytes())
		if f.Name == name && err == nil && off+size <= len(value) {
			return value[off : off+size], nil
		}
	}
	return nil, fmt.Errorf("its struct %s has no member %s", opsType, name)
}

// specFor returns the object as it is loaded: under the name registered, adapted to this kernel.
// ops is the name of the map with the control's struct.
func (o Control) specFor(registered string) (spec *ebpf.CollectionSpec, ops string, err error) {
	if spec, err = o.spec(); err != nil {
		return nil, "", err
	}
	m, err := opsMap(spec)
	if err != nil {
		return nil, "", err
	}
	name, err := member(m, "name")
	if err != nil {
		return nil, "", err
	}
	clear(name)
	copy(name[:maxName], registered)
	m.Flags |= unix.BPF_F_LINK // without the flag a registration would not end with its link
	for _, other := range spec.Maps {
		other.Pinning = ebpf.PinNone // all maps are freed with the control
	}
	kernelSide, err := kernelOps()
	if err != nil {
		return nil, "", err
	}
	dropTxStart(spec, kernelSide)
	knobs, err := kernelKnobs()
	if err != nil {
		return nil, "", err
	}
	for _, set := range []map[string]any{knobs, o.knobs} {
		for name, value := range set {
			if v := spec.Variables[name]; v != nil {
				if err := v.Set(value); err != nil {
					return nil, "", fmt.Errorf("set %s: %w", name, err)
				}
			}
		}
	}
	return spec, m.Name, nil
}

// load loads the programs and returns the filled map of the control, which keeps all of
// them loaded. It does not register the control, which gets the name registered.
func (o Control) load(registered string) (*ebpf.Map, error) {
	spec, ops, err := o.specFor(registered)
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, explainLoad(err, unix.Geteuid() == 0)
	}
	defer coll.Close()
	return coll.DetachMap(ops), nil
}

// try loads the programs to find out whether this kernel accepts them, and keeps nothing.
func (o Control) try() error {
	m, err := o.load(o.name())
	if err != nil {
		return err
	}
	return m.Close()
}
