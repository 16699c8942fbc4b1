package podnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// rules is the table of one network:
//
//	table inet tcpilot-NETWORK {
//		map pods     { type ifname : verdict; elements = { "tcp0123456789ab" : goto masquerade } }
//		set devices  { type ifname; elements = { "tcp0123456789ab" } }
//		chain postrouting { type nat hook postrouting priority srcnat; iifname vmap @pods }
//		chain masquerade {
//			oifname @devices return
//			ip daddr 224.0.0.0/4 return
//			masquerade
//		}
//	}
//
// The elements are the names of the pods' devices on the host, each of which belongs to one attachment. So
// DEL needs to know no address, and an address that another pod has got meanwhile is not affected. Map and
// set have the same elements: the map selects packets that come from pods, the set those that go to pods.
// Each goto counts as a use of the chain, so that the kernel refuses to delete the chain as long as there is
// a pod.
type rules struct {
	*nftables.Conn
	table                   *nftables.Table
	pods, devices           *nftables.Set
	postrouting, masquerade *nftables.Chain
}

// tablePrefix begins the names of the tables; the network's name follows.
const tablePrefix = "tcpilot-"

// openRules opens a connection that stays open until the process ends. When a socket of nftables is closed, the
// kernel waits until what earlier transactions removed is freed (nft_rcv_nl_event, nf_tables_trans_destroy_flush_work:
// a grace period of RCU, some 12 ms), and holds the mutex of all transactions (commit_mutex) meanwhile, so that
// other pods wait as well. When the process ends, mostly nothing is left to wait for.
func openRules(network string) (*rules, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, err
	}
	r := &rules{Conn: c, table: &nftables.Table{Family: nftables.TableFamilyINet, Name: tablePrefix + network}}
	r.pods = &nftables.Set{Table: r.table, Name: "pods", IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict}
	r.devices = &nftables.Set{Table: r.table, Name: "devices", KeyType: nftables.TypeIFName}
	r.postrouting = &nftables.Chain{Table: r.table, Name: "postrouting", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource}
	r.masquerade = &nftables.Chain{Table: r.table, Name: "masquerade"}
	return r, nil
}

// Masquerade gives what a pod sends to other hosts the address of the device by which it leaves, except to
// destinations that know the pod's address. device is the pair's end on the host.
//
// It is one transaction, which makes the table if there is none. It writes the rules anew if they differ from those
// of this call: the exceptions of the network's latest pod apply to all of its pods.
func Masquerade(network, device string, except []netip.Prefix) error {
	r, err := openRules(network)
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	mark := markOf(except)
	if r.areThere(except, mark) {
		if err := r.add(device); !isAbsent(err) { // otherwise the table ended meanwhile
			return err
		}
	}
	return r.write(except, device)
}

// write makes the table if there is none, writes its rules anew, and adds devices, in one transaction.
func (r *rules) write(except []netip.Prefix, devices ...string) error {
	mark := markOf(except)
	r.AddTable(r.table)
	r.AddChain(r.postrouting)
	r.AddChain(r.masquerade)
	if err := errors.Join(r.AddSet(r.pods, nil), r.AddSet(r.devices, nil)); err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	r.FlushChain(r.postrouting)
	r.FlushChain(r.masquerade)
	for chain, list := range r.content(except) {
		for _, e := range list {
			r.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: e, UserData: mark})
		}
	}
	return r.add(devices...)
}

// add executes the transaction, with the devices' elements at its end.
func (r *rules) add(devices ...string) error {
	for some := range slices.Chunk(devices, maxExact) { // an attribute of netlink has at most 64 KiB
		to, member := r.elements(some...)
		if err := errors.Join(r.SetAddElements(r.pods, to), r.SetAddElements(r.devices, member)); err != nil {
			return fmt.Errorf("masquerade: %w", err)
		}
	}
	if err := r.Flush(); err != nil {
		return fmt.Errorf("masquerade: change nftables table %s: %w", r.table.Name, err)
	}
	return nil
}

// content is the rules of each chain, in order.
func (r *rules) content(except []netip.Prefix) map[*nftables.Chain][][]expr.Any {
	list := [][]expr.Any{{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: r.devices.Name, SetID: r.devices.ID},
		&expr.Verdict{Kind: expr.VerdictReturn},
	}}
	for _, p := range append([]netip.Prefix{multicast4, multicast6}, except...) {
		list = append(list, append(destination(p), &expr.Verdict{Kind: expr.VerdictReturn}))
	}
	return map[*nftables.Chain][][]expr.Any{
		r.masquerade: append(list, []expr.Any{&expr.Masq{}}),
		r.postrouting: {{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Lookup{SourceRegister: 1, SetName: r.pods.Name, SetID: r.pods.ID, DestRegister: 0, IsDestRegSet: true},
		}},
	}
}

// markPrefix begins the comments of all rules.
const markPrefix = "tcpilot "

// contentVersion is part of markOf: it must be increased whenever content changes.
const contentVersion = 1

// markOf is the comment of all rules of a table with these exceptions.
func markOf(except []netip.Prefix) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf(markPrefix+"%012x", sum(fmt.Sprint(contentVersion, except))))
}

// areThere reports whether the table has the rules, by their marks and number.
func (r *rules) areThere(except []netip.Prefix, mark []byte) bool {
	for chain, want := range r.content(except) {
		have, err := r.GetRules(r.table, chain)
		if err != nil || len(have) != len(want) || slices.ContainsFunc(have, func(h *nftables.Rule) bool { return !bytes.Equal(h.UserData, mark) }) {
			return false
		}
	}
	return true
}

// CheckMasquerade returns what is missing of what Masquerade made for a device. The rules may have the exceptions of
// another pod by now.
func CheckMasquerade(network, device string, except []netip.Prefix) error {
	r, err := openRules(network)
	if err != nil {
		return fmt.Errorf("look for the rules that masquerade the pod: %w", err)
	}
	if err := r.check(except, device); err != nil {
		return fmt.Errorf("the pod is not masqueraded: %w", err)
	}
	return nil
}

// check returns what is missing of the rules of devices.
func (r *rules) check(except []netip.Prefix, devices ...string) (err error) {
	// What other pods change meanwhile can make a list incomplete.
	for range 3 {
		if err = r.checkOnce(except, devices); err == nil {
			return nil
		}
	}
	return err
}

func (r *rules) checkOnce(except []netip.Prefix, devices []string) error {
	if _, err := r.ListTableOfFamily(r.table.Name, r.table.Family); isAbsent(err) {
		return fmt.Errorf("there is no nftables table inet %s", r.table.Name)
	} else if err != nil {
		return fmt.Errorf("find nftables table inet %s: %w", r.table.Name, err)
	}
	content, mark := r.content(except), markOf(except)
	for _, chain := range []*nftables.Chain{r.postrouting, r.masquerade} {
		found, err := r.ListChain(r.table, chain.Name)
		if err != nil || (found.Hooknum == nil) != (chain.Hooknum == nil) {
			return fmt.Errorf("nftables table inet %s does not have its chain %s", r.table.Name, chain.Name)
		}
		have, err := r.GetRules(r.table, chain)
		if err != nil {
			return fmt.Errorf("list rules of chain %s in nftables table inet %s: %w", chain.Name, r.table.Name, err)
		}
		if !isWhole(have, len(content[chain]), mark) {
			return fmt.Errorf("chain %s in nftables table inet %s has other rules, or lacks some", chain.Name, r.table.Name)
		}
	}
	for _, set := range []*nftables.Set{r.pods, r.devices} {
		have, err := r.members(set)
		for _, device := range devices {
			if err != nil || !slices.Contains(have, device) {
				return fmt.Errorf("%s is not in %s in nftables table inet %s", device, set.Name, r.table.Name)
			}
		}
	}
	return nil
}

// isWhole reports whether a chain has this number of rules with this mark, or rules with the one mark of another
// pod's exceptions, whose number is not known.
func isWhole(have []*nftables.Rule, number int, mark []byte) bool {
	if len(have) == 0 {
		return false
	}
	first := have[0].UserData
	if slices.ContainsFunc(have, func(h *nftables.Rule) bool { return !bytes.Equal(h.UserData, first) }) {
		return false
	}
	if bytes.Equal(first, mark) {
		return len(have) == number
	}
	comment, _ := userdata.GetString(first, userdata.TypeComment)
	return strings.HasPrefix(comment, markPrefix)
}

// Unmasquerade takes devices out of the network's table, and removes the table when it has no
// devices any more. It is not an error if there is nothing to take out.
//
// It reads the table before it changes something, because a transaction that the kernel refuses is expensive: it
// waits for all processors (synchronize_rcu in __nf_tables_abort), and other pods' transactions wait for it.
func Unmasquerade(network string, devices ...string) error {
	r, err := openRules(network)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end masquerading: %w", err)
	}
	return r.remove(devices)
}

func (r *rules) remove(devices []string) error {
	have, err := r.list()
	if err != nil || have == nil {
		return err
	}
	for _, device := range devices {
		if !slices.Contains(have, device) && len(have) <= maxExact {
			continue // such as the second DEL of an attachment
		}
		to, member := r.elements(device)
		if err := errors.Join(r.SetDeleteElements(r.pods, to), r.SetDeleteElements(r.devices, member)); err != nil {
			return fmt.Errorf("end masquerading: %w", err)
		}
		if err := r.Flush(); err != nil && !isAbsent(err) {
			return fmt.Errorf("end masquerading of %s: change nftables table %s: %w", device, r.table.Name, err)
		}
	}
	if have, err := r.list(); err != nil || len(have) > 0 {
		return err
	}
	r.FlushChain(r.postrouting)
	r.DelChain(r.masquerade) // the kernel refuses this, and with it the transaction, if there is a pod by now
	r.DelTable(r.table)
	if err := r.Flush(); err != nil && !isAbsent(err) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("end masquerading: remove nftables table %s: %w", r.table.Name, err)
	}
	return nil
}

// maxExact is the number of devices that the kernel certainly lists in one message: a device takes 28 bytes of a
// message of at least a page. A longer list may lack a device, because others were taken out between two messages.
const maxExact = 100

// Masqueraded lists the devices in the network's table.
func Masqueraded(network string) (devices []string, err error) {
	r, err := openRules(network)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list masqueraded devices: %w", err)
	}
	return r.list()
}

// list returns the devices in the table; nil if there is no table.
func (r *rules) list() (devices []string, err error) {
	for range 10 {
		if devices, err = r.members(r.devices); err == nil {
			return devices, nil
		}
		// The library's error of the list does not tell that there is no table.
		if _, absent := r.ListTableOfFamily(r.table.Name, r.table.Family); isAbsent(absent) {
			return nil, nil
		}
		// Otherwise there is one now: it may have ended before, and another pod has made it again.
	}
	return nil, fmt.Errorf("list devices in nftables table %s: %w", r.table.Name, err)
}

// members returns the devices in the set or the map.
func (r *rules) members(set *nftables.Set) ([]string, error) {
	elements, err := r.GetSetElements(set)
	if err != nil {
		return nil, err
	}
	devices := make([]string, len(elements))
	for i, e := range elements {
		devices[i] = string(bytes.TrimRight(e.Key, "\x00"))
	}
	return devices, nil
}

// isAbsent reports whether an error says that there is no object of the name: also because the name is too long for
// a table (ERANGE), or because the kernel has no nftables.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// elements are those of devices in the map and in the set.
func (r *rules) elements(devices ...string) (to, member []nftables.SetElement) {
	for _, device := range devices {
		key := make([]byte, unix.IFNAMSIZ)
		copy(key, device)
		to = append(to, nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: r.masquerade.Name}})
		member = append(member, nftables.SetElement{Key: key})
	}
	return to, member
}

var (
	multicast4 = netip.MustParsePrefix("224.0.0.0/4") // RFC 5771
	multicast6 = netip.MustParsePrefix("ff00::/8")    // RFC 4291
)

// destination matches packets to a prefix.
func destination(p netip.Prefix) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the address in the header: RFC 791
	if p.Addr().Is6() {
		family, offset = unix.NFPROTO_IPV6, 24 // RFC 8200
	}
	n := ipNet(p.Masked())
	length := uint32(len(n.IP))
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: n.Mask, Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: n.IP},
	}
}
