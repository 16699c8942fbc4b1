// Package topology builds small networks out of network namespaces: hosts,
// routers and the veth pairs between them, and runs functions and processes
// inside them.
//
// Every name contains the id of the run that made it, so that Sweep finds what a
// killed run left behind. Net.Close undoes everything in reverse order.
//
// It refuses to touch the network namespace of its caller: both ends of each link are
// made inside its own namespaces.
package topology
