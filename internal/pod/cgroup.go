package pod

import (
	"regexp"
	"strings"
)

// uidInCgroup matches the name of a pod's cgroup as the kubelet makes it: podUID with the driver cgroupfs, and
// kubepods-burstable-podUID.slice with systemd, where the UID has _ for - (pkg/kubelet/cm: GetPodContainerName). The UID of a static
// pod is a hash.
var uidInCgroup = regexp.MustCompile(`^(?:kubepods(?:-burstable|-besteffort)?-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)

// UIDOfCgroup is the UID of the pod whose cgroup has this name; empty if it is not a pod's.
func UIDOfCgroup(name string) string {
	if m := uidInCgroup.FindStringSubmatch(name); m != nil {
		return strings.ReplaceAll(m[1], "_", "-")
	}
	return ""
}
