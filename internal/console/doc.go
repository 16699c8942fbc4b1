// Package console is what tcpilot's programs share as command lines: streams, tables
// and JSON, how arguments are checked, exit codes, and pages of documentation.
//
// It refuses to know a command.
package console
