package cnispec

// Plugin is the name of the plugin's program, and the type of its entry in network configurations.
const Plugin = "tcpilot-cni"

// Versions are the versions of the specification in which the plugin answers, in ascending order. Chains exist
// since 0.3.0.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
