// Package vm embeds the scripts in its directory, so that an installed tcpilot-lab has
// them; lab/vm runs them. It refuses to do anything itself.
package vm

import "embed"

// Scripts are the scripts that start a machine.
//
//go:embed run fetch init guest lib.sh install
var Scripts embed.FS
