// Package console has what the command lines of tcpilot's programs share: streams, tables,
// JSON, checks of arguments, exit codes, and pages of documentation.
//
// It refuses to contain any command.
package console
