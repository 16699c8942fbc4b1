// Package netns enters network namespaces, names them and reads their cookies. It refuses
// to leave a thread behind in a foreign one: a thread that cannot go back ends.
package netns
