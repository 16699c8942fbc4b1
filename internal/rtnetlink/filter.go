package rtnetlink

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Hook is where filters of a device see packets, if the device has a qdisc clsact (tc-bpf(8)).
type Hook uint32

// Of include/uapi/linux/pkt_sched.h. The qdisc ingress has only the first one.
const (
	Ingress Hook = 0xffff_fff2 // TC_H_MIN_INGRESS
	Egress  Hook = 0xffff_fff3 // TC_H_MIN_EGRESS
)

// Filter is a filter of a device.
type Filter struct {
	Device   int
	Hook     Hook
	Priority uint16 // lower ones run first
	Handle   uint32 // among those of one priority
	Kind     string // bpf, flower, ...
	Name     string // text that whoever added an eBPF filter gave it, at most 255 bytes
	Program  uint32 // id of the eBPF program; 0: it has none
}

// include/uapi/linux: pkt_sched.h, rtnetlink.h, pkt_cls.h.
const (
	clsactParent = 0xffff_fff1 // TC_H_CLSACT
	clsactHandle = 0xffff_0000 // also that of the qdisc ingress
	tcKind       = 1           // TCA_KIND
	tcOptions    = 2           // TCA_OPTIONS
	bpfFD        = 6           // TCA_BPF_FD
	bpfName      = 7           // TCA_BPF_NAME
	bpfFlags     = 8           // TCA_BPF_FLAGS
	bpfFlagsGen  = 9           // TCA_BPF_FLAGS_GEN
	bpfID        = 11          // TCA_BPF_ID
	actDirect    = 1           // TCA_BPF_FLAG_ACT_DIRECT: the program's result is the verdict
	skipHardware = 1           // TCA_CLS_FLAGS_SKIP_HW
	tcHeader     = 20          // bytes of struct tcmsg
)

func tcmsg(device int, handle, parent, info uint32) []byte {
	b := make([]byte, 4, tcHeader) // family and padding
	for _, word := range []uint32{uint32(device), handle, parent, info} {
		b = binary.NativeEndian.AppendUint32(b, word)
	}
	return b
}

// header says which filter. Filters see packets of all protocols.
func (f *Filter) header() []byte {
	return tcmsg(f.Device, f.Handle, uint32(f.Hook), uint32(f.Priority)<<16|uint32(networkOrder(unix.ETH_P_ALL)))
}

// networkOrder is htons(3).
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// message asks for a filter with an eBPF program.
func (f *Filter) message(program int) []byte {
	word := func(kind uint16, n int) []byte {
		return Attribute(kind, binary.NativeEndian.AppendUint32(nil, uint32(n)))
	}
	options := append(word(bpfFD, program), Attribute(bpfName, append([]byte(f.Name), 0))...)
	options = append(append(options, word(bpfFlags, actDirect)...), word(bpfFlagsGen, skipHardware)...)
	return append(append(f.header(), kindOf("bpf")...), Attribute(tcOptions, options)...)
}

func kindOf(kind string) []byte { return Attribute(tcKind, append([]byte(kind), 0)) }

func clsact(device int) []byte {
	return append(tcmsg(device, clsactHandle, clsactParent, 0), kindOf("clsact")...)
}

// ClsactOf is the kind of the qdisc that has a device's hooks: clsact, or ingress; empty if the device has none.
func ClsactOf(device int) (kind string, err error) {
	// Linux 6.1 answers only with NLM_F_ECHO. The acknowledgement, which is not read, is for a kernel that does not answer.
	answer, err := getWith(unix.RTM_GETQDISC, unix.NLM_F_ECHO|unix.NLM_F_ACK, tcmsg(device, clsactHandle, clsactParent, 0))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // the second one if it had one earlier
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if len(answer) < tcHeader {
		return "", errShort
	}
	return kind, EachAttribute(answer[tcHeader:], func(attribute uint16, value []byte) error {
		if attribute == tcKind {
			kind = unix.ByteSliceToString(value)
		}
		return nil
	})
}

// DeleteClsact removes the qdisc clsact of a device with all its filters.
func DeleteClsact(device int) error { return Set(unix.RTM_DELQDISC, 0, clsact(device)) }

// FindFilter looks for a filter by its device, hook, priority and handle. It is not an error if there is none.
func FindFilter(f Filter) (found Filter, ok bool, err error) {
	answer, err := get(unix.RTM_GETTFILTER, f.header())
	// EINVAL: there is no qdisc, or the priority has filters for another protocol.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return found, false, nil
	}
	if err != nil {
		return found, false, err
	}
	found, err = readFilter(answer)
	found.Hook = f.Hook
	return found, err == nil, err
}

// AddFilter adds an eBPF program, given by its descriptor, as a filter. Of f, the kind and the program's id are not
// used. A handle that is in use is refused (EEXIST), and so is a priority with filters of another kind or
// protocol (EINVAL).
func AddFilter(f Filter, program int) error {
	return Set(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f.message(program))
}

// AddFilterAndClsact is AddFilter for a device without a qdisc clsact, which is added too. The two requests are
// one message, which the kernel handles completely even if the process is killed meanwhile. The filter
// is also added if the qdisc was added by somebody else meanwhile (EEXIST).
func AddFilterAndClsact(f Filter, program int) (qdisc, filter error) {
	create := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_ACK)
	s, err := open(unix.NETLINK_ROUTE)
	if err != nil {
		return err, err
	}
	defer s.Close()
	if err := s.send(append(request(unix.RTM_NEWQDISC, create, clsact(f.Device)), request(unix.RTM_NEWTFILTER, create, f.message(program))...)); err != nil {
		return err, err
	}
	return s.acknowledged(), s.acknowledged()
}

// ReplaceFilter gives a filter another program and name. No packet passes without one of the two programs.
func ReplaceFilter(f Filter, program int) error {
	return Set(unix.RTM_NEWTFILTER, unix.NLM_F_REPLACE, f.message(program))
}

// DeleteFilter removes a filter.
func DeleteFilter(f Filter) error { return Set(unix.RTM_DELTFILTER, 0, f.header()) }

// EachFilter calls found for the filters at a hook of a device, in their order, until it returns false.
func EachFilter(device int, hook Hook, found func(Filter) (more bool)) error {
	s, err := open(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.send(request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, tcmsg(device, 0, uint32(hook), 0))); err != nil {
		return err
	}
	for {
		answers, err := s.receive()
		if err != nil {
			return err
		}
		if more, err := eachOf(answers, hook, found); err != nil || !more {
			return err
		}
	}
}

// eachOf is EachFilter for a part of the list. more is false after the last part, and if found returns false.
func eachOf(answers []byte, hook Hook, found func(Filter) (more bool)) (more bool, err error) {
	for len(answers) > 0 {
		var kind uint16
		var body []byte
		if kind, body, answers, err = first(answers); err != nil {
			return false, err
		}
		if kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR {
			return false, errorOf(body) // the kernel may end a list early, for example if a filter is too long for a message
		}
		f, err := readFilter(body)
		if err != nil {
			return false, err
		}
		f.Hook = hook
		// The kernel lists each priority as if it was a filter with the handle 0, and then its filters.
		if f.Handle != 0 && !found(f) {
			return false, nil
		}
	}
	return true, nil
}

// readFilter reads a filter, except for its hook: the kernel does not always say it.
func readFilter(answer []byte) (f Filter, err error) {
	if len(answer) < tcHeader {
		return f, errShort
	}
	word := binary.NativeEndian.Uint32
	f = Filter{Device: int(word(answer[4:])), Handle: word(answer[8:]), Priority: uint16(word(answer[16:]) >> 16)}
	return f, EachAttribute(answer[tcHeader:], func(kind uint16, value []byte) error {
		switch kind {
		case tcKind:
			f.Kind = unix.ByteSliceToString(value)
		case tcOptions:
			if f.Kind == "bpf" { // the kind comes first
				return EachAttribute(value, f.option)
			}
		}
		return nil
	})
}

func (f *Filter) option(kind uint16, value []byte) error {
	switch {
	case kind == bpfName:
		f.Name = unix.ByteSliceToString(value)
	case kind == bpfID && len(value) == 4:
		f.Program = binary.NativeEndian.Uint32(value)
	}
	return nil
}
