package pod

import "time"

// Pod is one attachment of a pod's network namespace, as the runtime described it at ADD.
type Pod struct {
	Network   string `json:"network"`      // name of the network configuration: GC is for one network
	Container string `json:"container_id"` // CNI_CONTAINERID
	Interface string `json:"interface"`    // CNI_IFNAME
	NetNS     string `json:"netns"`        // CNI_NETNS: a path
	// Cookie is the namespace's cookie (SO_NETNS_COOKIE). Unlike the path it is never used again.
	Cookie      uint64            `json:"netns_cookie"`
	Namespace   string            `json:"namespace"` // K8S_POD_NAMESPACE of CNI_ARGS
	Name        string            `json:"name"`      // K8S_POD_NAME
	UID         string            `json:"uid,omitempty"`
	Cgroup      string            `json:"cgroup,omitempty"` // capability cgroupPath
	Annotations map[string]string `json:"annotations,omitempty"`
	Bandwidth   Bandwidth         `json:"bandwidth,omitzero"` // capability bandwidth
	Added       time.Time         `json:"added"`
}

// Bandwidth is what the runtime asks for a pod, in bits per second; 0 is no limit. It has no
// bursts, because runtimes pass 2^32-1 or 2^64-1 bits for any rate.
type Bandwidth struct {
	Egress  uint64 `json:"egress,omitempty"`
	Ingress uint64 `json:"ingress,omitempty"`
}

// Key identifies the pod's attachment.
func (p *Pod) Key() Key { return Key{p.Container, p.Interface} }
