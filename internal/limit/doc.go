// Package limit divides rate limits among the connections that are under them, by what each of
// them needs: a connection that sends less than its share leaves the rest to the others.
//
// It refuses to talk to the kernel: it gets what connections have sent, and returns shares.
package limit
