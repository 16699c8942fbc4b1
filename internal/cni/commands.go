package cni

import (
	"errors"
	"io/fs"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// do executes a command other than VERSION. An error that is not a *failure has codeIO.
func (r *request) do() (answer, error) {
	switch r.command {
	case "ADD":
		return r.add()
	case "DEL":
		return r.del()
	case "CHECK":
		return answer{}, r.check()
	case "GC":
		return r.collect()
	}
	return answer{}, r.status()
}

func (r *request) add() (a answer, err error) {
	if a.output, err = r.result(); err != nil {
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
	link, err := r.find(r.netns, r.key.Interface)
	if err != nil {
		return a, fail(codeIO, "%v", err)
	}
	link.Addresses = r.addresses()
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
		Link:        link,
		Added:       time.Now().UTC(),
	}
	if err := r.Dir.Put(p); err != nil {
		return a, err
	}
	a.changed, a.pod = true, name(p.Namespace, p.Name, r.key)
	return a, nil
}

// netnsCookie is the cookie of CNI_NETNS. The host's namespace is refused, because a record of it
// would give the host's connections the rules of a pod.
func (r *request) netnsCookie() (cookie uint64, err error) {
	own, err := r.cookie("")
	if err != nil {
		return 0, err
	}
	if cookie, err = r.cookie(r.netns); err != nil {
		return 0, fail(codeEnvironment, "CNI_NETNS: %v", err)
	}
	if cookie == own {
		return 0, fail(codeEnvironment, "CNI_NETNS: %s is the network namespace of the container runtime", r.netns)
	}
	return cookie, nil
}

// del succeeds if there is nothing to delete. It needs neither CNI_NETNS nor prevResult.
func (r *request) del() (a answer, err error) {
	if a.changed, err = r.Dir.Delete(r.key); err != nil {
		return a, err
	}
	args, _ := parseArgs(r.args)
	a.pod = name(args.Namespace, args.Name, r.key)
	return a, nil
}

// check finds the record, and that it is of the namespace. The plugin makes nothing that prevResult
// lists, so that it only has to be there.
func (r *request) check() error {
	if _, err := r.result(); err != nil {
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
	return nil
}

// collect deletes the records of this network whose attachments are not valid any more.
func (r *request) collect() (a answer, err error) {
	valid, err := r.validAttachments()
	if err != nil {
		return a, err
	}
	removed, err := r.Dir.Keep(r.Network, valid)
	a.changed, a.pod = removed > 0, "network "+r.Network
	return a, err
}

// status says whether ADD can write a record. The daemon does not matter for that.
func (r *request) status() error {
	if err := r.Dir.Writable(); err != nil {
		return fail(codeUnavailable, "%v", err)
	}
	return nil
}
