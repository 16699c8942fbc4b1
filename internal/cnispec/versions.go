package cnispec

// Plugin is the name of the plugin's program, and the type of its entry in network configurations.
const Plugin = "tcpilot-cni"

// Versions are the versions of the specification in which the plugin answers, in ascending order. Chains exist
// since 0.3.0.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

const (
	// MainNetwork is the name of the network that 'tcpilot cni install --main' configures.
	MainNetwork = "tcpilot"
	// UninstalledKey is a key of the plugin's entry in the network configuration that stays for the end of pods when the main
	// plugin is uninstalled: ADD and STATUS fail.
	UninstalledKey = "uninstalled"
	// HostLocalDir is where host-local keeps the addresses of each network without the key dataDir (plugins/ipam/host-local/backend/disk).
	HostLocalDir = "/var/lib/cni/networks"
)
