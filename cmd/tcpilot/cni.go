package main

import (
	"os"

	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/cniconf"
	"github.com/tcpilot/tcpilot/internal/console"
)

func node(o cli.CNIOptions) cniconf.Node {
	return cniconf.Node{ConfDir: o.ConfDir, BinDir: o.BinDir, Records: o.Records, Socket: o.Socket}
}

func installCNI(o cli.CNIOptions) (cli.CNIChange, error) {
	n, program := node(o), o.Program
	if program == "" {
		var err error
		if program, err = console.FindProgram(cniconf.Type, "install-cni"); err != nil {
			if _, missing := os.Stat(n.Program()); missing != nil {
				return cli.CNIChange{}, err
			}
			program = n.Program()
		}
	}
	did, warning, err := n.Install(program)
	c := change(did, "")
	c.Warning = warning
	return c, err
}

func uninstallCNI(o cli.CNIOptions) (cli.CNIChange, error) {
	did, stays, err := node(o).Uninstall(o.Force)
	return change(did, stays), err
}

func change(did []string, stays string) cli.CNIChange {
	if did == nil {
		did = []string{}
	}
	return cli.CNIChange{Changed: did, Stays: stays}
}
