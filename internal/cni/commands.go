package cni

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/podnet"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

// do executes a command other than VERSION. An error that is not a *failure is printed with codeIO.
func (r *request) do() (a answer, err error) {
	switch r.command {
	case "ADD":
		return r.add()
	case "DEL":
		a, err = r.del()
	case "CHECK":
		return a, r.check()
	case "GC":
		a, err = r.collect()
	default: // STATUS. It fails while the plugin is being removed, and goes on with that.
		err = r.status()
		if !r.Uninstalled {
			return a, err
		}
		a.pod = "network " + r.Network
	}
	if err == nil || r.command == "STATUS" {
		r.finishRemoval(&a)
	}
	return a, err
}

func (r *request) add() (a answer, err error) {
	if err := r.checkPlace(); err != nil {
		return a, err
	}
	args, err := parseArgs(r.args)
	if err != nil {
		return a, err
	}
	rc, err := r.runtime()
	if err != nil {
		return a, err
	}
	cookie, err := r.netnsCookie()
	if err != nil {
		return a, err
	}
	p := &pod.Pod{
		Network:     r.Network,
		Container:   r.key.Container,
		Interface:   r.key.Interface,
		NetNS:       r.netns,
		Cookie:      cookie,
		Namespace:   args.Namespace,
		Name:        args.Name,
		UID:         args.UID,
		Cgroup:      rc.Cgroup,
		Annotations: rc.Annotations,
		Bandwidth:   pod.Bandwidth{Egress: rc.Bandwidth.Egress, Ingress: rc.Bandwidth.Ingress},
	}
	if err := podrecord.SetAdded(p); err != nil {
		return a, err
	}
	a.pod = name(p.Namespace, p.Name, r.key)
	if r.main() {
		a.output, a.settings, err = r.makeInterface(p)
	} else {
		a.output, a.warning, err = r.recordInterface(p)
	}
	a.changed = err == nil
	return a, err
}

// recordInterface is ADD of the chained plugin: another plugin has made the interface. If that cannot be
// found, there is only a warning, so that the pod starts.
func (r *request) recordInterface(p *pod.Pod) (result json.RawMessage, warning, err error) {
	if result, err = r.result(); err != nil {
		return nil, nil, err
	}
	link, warning := r.Find(r.netns, r.key.Interface)
	if warning == nil {
		p.Link = link
	}
	p.Addresses = r.addresses()
	if before, err := r.Dir.Get(r.key); err == nil {
		complete(p, &before)
	}
	if p.Index != 0 {
		warning = nil
	}
	if err := r.Dir.Put(p); err != nil {
		return nil, warning, err
	}
	return result, warning, nil
}

// complete adds to a chained plugin's new record what the previous record of the attachment has. That may be the
// record of an ADD that is repeated, or of the main plugin before this one in the chain, whose DEL needs it.
func complete(p, before *pod.Pod) {
	network := cmp.Or(before.Network, p.Network)
	same := network == p.Network
	if before.Made {
		p.Made, p.Chained, p.Network = true, same, network
	}
	if before.Cookie != p.Cookie || !same && !before.Made {
		return // the previous record is of another pod, or of an interface that is gone
	}
	if p.Index == 0 {
		p.Device, p.Index, p.HostIndex = before.Device, before.Index, before.HostIndex
	}
	if !before.Made {
		return
	}
	if before.Index != 0 {
		p.Link, p.Masqueraded, p.MasqueradeExcept = before.Link, before.Masqueraded, before.MasqueradeExcept // CHECK compares them
	}
	p.Namespace, p.Name, p.UID = cmp.Or(p.Namespace, before.Namespace), cmp.Or(p.Name, before.Name), cmp.Or(p.UID, before.UID)
	p.Cgroup, p.Bandwidth, p.Added = cmp.Or(p.Cgroup, before.Cgroup), cmp.Or(p.Bandwidth, before.Bandwidth), before.Added
	p.Boot, p.Uptime = before.Boot, before.Uptime
	if len(p.Annotations) == 0 {
		p.Annotations = before.Annotations
	}
}

// netnsCookie is the cookie of CNI_NETNS. The host's namespace is refused, because a record of it
// would give the host's connections the rules of a pod.
func (r *request) netnsCookie() (cookie uint64, err error) {
	own, err := r.Cookie("")
	if err != nil {
		return 0, err
	}
	if cookie, err = r.Cookie(r.netns); err != nil {
		return 0, fail(codeEnvironment, "CNI_NETNS: %v", err)
	}
	if cookie == own {
		return 0, fail(codeEnvironment, "CNI_NETNS: %s is the network namespace of the container runtime", r.netns)
	}
	return cookie, nil
}

// del succeeds if there is nothing to delete. It needs neither CNI_NETNS nor prevResult.
func (r *request) del() (a answer, err error) {
	args, _ := parseArgs(r.args)
	a.pod = name(args.Namespace, args.Name, r.key)
	p, err := r.Dir.Get(r.key)
	// With a configuration whose ipam is wrong, ADD has made nothing: it refuses that.
	_, wrong := r.ipamPlugin()
	began := r.main() && wrong == nil
	if err == nil && cmp.Or(p.Network, r.Network) != r.Network {
		// The interface is another network's: because of it, ADD of this network has failed.
		if began {
			_, err = r.ipam("DEL", r.key, r.netns)
		}
		return a, err
	}
	if p.Chained && !r.main() {
		return a, nil // DEL of the main plugin comes after this one, and deletes the record
	}
	if made := err == nil && p.Made; made || began {
		// The record stays until all that it describes is removed.
		if err := r.removeInterface(r.key, r.netns); err != nil {
			return a, err
		}
	}
	if err == nil { // there is a record: it is the first DEL
		a.unfinished = r.awaitRepeat()
	}
	a.changed, err = r.Dir.Delete(r.key)
	if a.unfinished != nil { // the record may have taken the last space of the disk
		a.unfinished = r.awaitRepeat()
	}
	return a, err
}

// check checks that there is a record, and that it is of this network namespace. The chained plugin makes nothing
// else.
func (r *request) check() error {
	if err := r.hasPrevResult(); err != nil {
		return err
	}
	p, err := r.Dir.Get(r.key)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(codeNoRecord, "no record of container %s, interface %s in %s: rules for pods do not match it", r.key.Container, r.key.Interface, r.Dir).
			because("ADD makes it")
	}
	if err != nil {
		return err
	}
	cookie, err := r.netnsCookie()
	if err != nil {
		return err
	}
	if p.Cookie != cookie {
		return fail(codeOtherNetNS, "the record of container %s, interface %s is of another network namespace: its cookie is %d, that of %s is %d",
			r.key.Container, r.key.Interface, p.Cookie, r.netns, cookie)
	}
	if r.main() {
		return r.checkInterface(&p)
	}
	return nil
}

// collect deletes the records of this network whose attachments are not valid any more.
func (r *request) collect() (a answer, err error) {
	valid, err := r.validAttachments()
	if err != nil {
		return a, err
	}
	a.pod = "network " + r.Network
	kept, deleted, err := r.collectInterfaces(valid)
	// The records of interfaces that could not be removed are kept for the next GC.
	removed, failed := r.Dir.Keep(r.Network, append(valid, kept...))
	a.changed = deleted || removed > 0
	return a, errors.Join(err, failed)
}

// status returns why every ADD would fail: the configuration is wrong, the kernel has no such device, or a record
// cannot be written or an address not be had from the IPAM plugin. The daemon is not needed for that.
func (r *request) status() error {
	if r.Uninstalled || r.main() {
		if err := r.refusesPods(); err != nil {
			return err
		}
	}
	var m *mainConfig
	if r.main() {
		var err error
		if m, err = r.mainConfig(nil); err != nil {
			return err
		}
	}
	if err := r.Dir.Writable(); err != nil {
		return fail(codeUnavailable, "%v", err)
	}
	if m == nil {
		return nil
	}
	if err := r.hasDevice(m.modes); err != nil {
		return err
	}
	_, err := r.ipam("STATUS", pod.Key{}, "")
	if f := (*failure)(nil); errors.As(err, &f) && f.Code != codeUnavailable && f.Code != codeLimited {
		f.Code = codeUnavailable
	}
	return err
}

// hasDevice returns an error if the kernel has no device of any of the modes. The last one comes first: it is the
// fallback, which nearly all kernels have, and for a kind that it does not have the kernel looks for a module.
func (r *request) hasDevice(modes []podnet.Mode) error {
	var failed error
	for _, mode := range slices.Backward(modes) {
		err := r.Has(mode.Device)
		if err == nil {
			return nil
		}
		failed = err
	}
	return fail(codeUnavailable, "%v", failed).because("'tcpilot doctor' lists the devices that there are")
}
