// Package cli is the command line of tcpilot-lab.
//
// It refuses to need root itself: operations that do are passed in through Env, so that
// every command can be tested with a fake.
package cli

//go:generate go test -run ^TestDocumentation$ -update .
