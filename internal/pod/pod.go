package pod

import "time"

// Pod is one attachment of a pod's network namespace, as the runtime described it at ADD.
type Pod struct {
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
	Added       time.Time         `json:"added"`
}
