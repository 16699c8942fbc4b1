// Package defaults has the paths at which tcpilot's programs find each other if no configuration says otherwise.
//
// It refuses to know more than paths: what else has a default is a key of package config.
package defaults

const (
	RunDir   = "/run/tcpilot"
	StateDir = "/var/lib/tcpilot"

	// SocketName is the name of the daemon's socket for administrators in its run_dir.
	SocketName = "tcpilot.sock"
	Socket     = RunDir + "/" + SocketName

	// PodsDir has the records of pods, which the CNI plugin writes and the daemon reads.
	PodsDir = StateDir + "/pods"
)
