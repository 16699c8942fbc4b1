// Package routes lists the routes of a network namespace and changes one thing of them: whether TCP uses timestamps
// in microseconds there (features tcp_usec_ts in ip-route(8), Linux 6.7).
//
// It refuses to add or delete routes, and to change one of which it does not know all attributes.
package routes
