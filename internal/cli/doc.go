// Package cli is tcpilot's command line. Commands named by a noun read; commands named by a
// verb change something. Every command that reads can write JSON, in the form of the API.
//
// It refuses to do the work itself: it reaches the daemon through the API, and calls what
// must work without a daemon (run, check, replay, doctor, detach) through Env, so that every
// command can be tested with a fake.
package cli

//go:generate go test -run ^TestDocumentation$ -update .
