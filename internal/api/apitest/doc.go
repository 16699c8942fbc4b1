// Package apitest is a daemon to test clients against: fixed answers, served
// over a real unix socket.
//
// It refuses to be part of a program.
package apitest
