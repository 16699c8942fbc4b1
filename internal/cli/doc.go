// Package cli is tcpilot's command line. Nouns read, verbs change; everything
// that reads can write JSON instead, and that JSON is the API's own.
//
// It refuses to do the work itself: the daemon is reached through the API, and what
// must work without one (run, check, replay, doctor, detach) is handed in through Env,
// so that every command can be tested with a fake.
package cli

//go:generate go test -run ^TestDocumentation$ -update .
