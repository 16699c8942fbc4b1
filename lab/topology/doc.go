// Package topology builds small networks out of network namespaces: hosts,
// routers and the veth pairs between them, and runs functions and processes
// inside them.
//
// Every name carries the id of the run that made it, so that Sweep finds what a
// killed run left behind. Everything is undone in reverse order by Net.Close.
//
// It refuses to touch the network namespace of its caller: links are made inside its
// own namespaces, both ends of them.
package topology
