package pod

import (
	"path"
	"regexp"
	"strings"
)

// The kubelet makes a pod's cgroup (pkg/kubelet/cm: GetPodContainerName): kubepods/burstable/podUID with the driver cgroupfs, and
// kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice with systemd, where the UID has _ for -; behind a prefix if it has a cgroup
// root of its own. The UID of a static pod is a hash.
var (
	uidInCgroup = regexp.MustCompile(`^(?:(?:.+-)?kubepods(?:-burstable|-besteffort)?-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)
	abovePods   = regexp.MustCompile(`^(?:(?:.+-)?kubepods(?:-burstable|-besteffort)?(?:\.slice)?|burstable|besteffort)$`)
)

// UIDOfCgroup is the UID of the pod whose cgroup has this path; empty if it is not a pod's.
func UIDOfCgroup(at string) string {
	above, name := path.Split(at)
	m := uidInCgroup.FindStringSubmatch(name)
	if m == nil || !abovePods.MatchString(path.Base(above)) {
		return ""
	}
	return strings.ReplaceAll(m[1], "_", "-")
}
