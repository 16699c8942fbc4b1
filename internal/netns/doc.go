// Package netns enters network namespaces, names them and reads their cookies. It refuses to
// leave a thread in a foreign namespace: a thread that cannot return is terminated.
package netns
