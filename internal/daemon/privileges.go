package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// privileges are the capabilities that the daemon needs, and what it cannot do without one.
var privileges = []struct {
	bit     uint
	name    string
	without string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "BPF programs are not loaded, and network namespaces not entered"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "modules of congestion controls are not loaded, and devices and routes are not changed: " +
		"no BIG TCP of pods, no timestamps in microseconds, and before Linux 6.6 no programs at devices of pods"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "network namespaces of processes with other privileges are not found: their connections are tuned, " +
		"and sampled at their end, but not while they run, and settings of their owners are overridden"},
}

// capabilities are the effective ones of this thread, as a mask of 1 << CAP_* (capabilities(7)).
func capabilities() (uint64, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return 0, fmt.Errorf("read own capabilities: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// privilegeProblems describes what does not work with these capabilities.
func privilegeProblems(have uint64) (list []string) {
	for _, p := range privileges {
		if have&(1<<p.bit) == 0 {
			list = append(list, p.name+" is missing: "+p.without)
		}
	}
	return list
}
