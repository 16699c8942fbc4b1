// Package vm carries the scripts beside it, so that an installed tcpilot has
// them: lab/vm runs them. It imports the standard library and refuses
// to do anything itself.
package vm

import "embed"

// Scripts are those that start a machine.
//
//go:embed run fetch init guest lib.sh install
var Scripts embed.FS
