// Package apitest is a fake daemon to test clients with: fixed answers, served over a real
// unix socket.
//
// It refuses to be part of a program.
package apitest
