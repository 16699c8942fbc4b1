// Package rtnetlink makes single requests to the kernel about network devices, routes and namespaces
// (rtnetlink(7)), tc filters, and policies of IPsec, in the network namespace of the calling thread. It exists because
// the daemon makes too few requests to be worth a library.
//
// It refuses to list, except for the filters at one hook of a device: every other request has one answer.
package rtnetlink
