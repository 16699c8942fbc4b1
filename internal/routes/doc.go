// Package routes lists the routes of a network namespace and changes one thing of them: whether TCP uses timestamps
// in microseconds there (features tcp_usec_ts in ip-route(8), Linux 6.7). It adds and deletes the routes to the pods of other nodes, which
// have a routing protocol of their own.
//
// It refuses to delete other routes, and to change one of which it does not know all attributes.
package routes
