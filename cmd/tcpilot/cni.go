package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/tcpilot/tcpilot/internal/cli"
	"github.com/tcpilot/tcpilot/internal/cniconf"
	"github.com/tcpilot/tcpilot/internal/cnigc"
	"github.com/tcpilot/tcpilot/internal/cnispec"
	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/internal/kubeapi"
	"github.com/tcpilot/tcpilot/internal/podrecord"
)

func node(o cli.CNIOptions) cniconf.Node {
	return cniconf.Node{ConfDir: o.ConfDir, BinDir: o.BinDir, Records: o.Records, Leases: cnispec.HostLocalDir, Socket: o.Socket}
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
	install := n.Install
	if o.Main {
		install = func(program string) ([]string, string, error) {
			return n.InstallMain(program, cniconf.Main{PodCIDRs: o.PodCIDRs, Cluster: o.Cluster})
		}
	}
	did, warning, err := install(program)
	c := change(did)
	c.Warning = warning
	return c, err
}

func uninstallCNI(o cli.CNIOptions) (cli.CNIChange, error) {
	var removed []string
	if o.Main {
		var err error
		if removed, err = node(o).UninstallMain(); err != nil {
			return cli.CNIChange{}, err
		}
	}
	did, waits, err := node(o).Uninstall(o.Force)
	c := change(append(removed, did...))
	if !waits.None() {
		c.Waits, c.Sandboxes = waits.Pods, waits.Stopped
		c.Stays = node(o).Program() + " stays: it waits " + cli.RemovalWaits(waits.Pods, waits.Stopped)
		if waits.Gone > 0 {
			c.Stays += fmt.Sprintf("; without a network namespace, so that the runtime may not end them with this plugin: %d, run 'tcpilot cni gc'", waits.Gone)
		}
	}
	return c, err
}

// podCIDRs are the networks of this node's pods, from the API server.
func podCIDRs(ctx context.Context, o cli.CNIOptions) ([]netip.Prefix, error) {
	name, err := o.Node, error(nil)
	if name == "" {
		name, err = kubeapi.NodeName()
	}
	if err != nil {
		return nil, fmt.Errorf("find name of the node: %w", err)
	}
	n, err := kubeapi.ReadNode(ctx, o.Kubeconfig, name)
	if err != nil {
		return nil, fmt.Errorf("%w; without an API server, give the networks of this node's pods with --pod-cidr", err)
	}
	if len(n.PodCIDRs) == 0 {
		return nil, fmt.Errorf("node %s has no podCIDRs: let the controller manager give them (--allocate-node-cidrs, --cluster-cidr), or use --pod-cidr", name)
	}
	return n.PodCIDRs, nil
}

func change(did []string) cli.CNIChange {
	if did == nil {
		did = []string{}
	}
	return cli.CNIChange{Changed: did}
}

func collectCNI(ctx context.Context, o cli.CNIOptions, done func(cli.CNIAttachment)) (cli.CNICollected, error) {
	n := cnigc.Node{ConfDir: o.ConfDir, BinDir: o.BinDir, CacheDir: o.CacheDir, Records: podrecord.Dir(o.Records), OlderThan: o.OlderThan, DryRun: o.DryRun, Stderr: os.Stderr}
	r, err := n.Collect(ctx, func(a cnigc.Attachment) { done(cli.CNIAttachment(a)) })
	c := cli.CNICollected{DryRun: o.DryRun, Kept: r.Kept, Gone: attachments(r.Gone), Unclear: attachments(r.Unclear), Leases: make([]cli.CNILease, len(r.Leases))}
	for i, l := range r.Leases {
		c.Leases[i] = cli.CNILease(l)
	}
	if err != nil || o.DryRun {
		return c, err
	}
	// The removal of the plugin may have waited for these pods.
	c.Uninstalled, err = cniconf.Finish(o.Records, cnispec.HostLocalDir)
	return c, err
}

func attachments(list []cnigc.Attachment) []cli.CNIAttachment {
	out := make([]cli.CNIAttachment, len(list))
	for i, a := range list {
		out[i] = cli.CNIAttachment(a)
	}
	return out
}
