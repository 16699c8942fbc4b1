package cnispec

// Versions are the versions of the specification in which the plugin answers, in ascending order. Chains exist
// since 0.3.0.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
