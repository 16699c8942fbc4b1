// Package podlink owns the programs on the network devices of pods, and their maps: it loads,
// attaches, pins, adopts and detaches them, and writes which device is which pod's. So packets of
// pods can be routed without the host's stack (docs/design/0020-host-routing.md).
//
// It refuses to touch a device unless the kernel says that the device's other end is in the pod's own
// network namespace, and programs that are not tcpilot's.
package podlink
