package cli

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/console"
)

// CNIOptions are the flags of cni install, cni uninstall and cni gc.
type CNIOptions struct {
	ConfDir, BinDir string
	Program         string // of the plugin; empty: as console.FindProgram finds it, or what is in BinDir
	Records         string
	Socket          string
	Force           bool // of uninstall: remove everything also if pods may need it
	// Of install and uninstall: whether it is the main plugin, and of install the networks of the node's pods and of all pods, and
	// where the first are asked for.
	Main              bool
	PodCIDRs, Cluster []netip.Prefix
	Kubeconfig, Node  string
	// Of gc: the container runtime's cache, from which age on pods are looked at, and whether nothing is removed.
	CacheDir  string
	OlderThan time.Duration
	DryRun    bool
}

// CNIChange is what cni install or cni uninstall changed on the node.
type CNIChange struct {
	Changed []string `json:"changed"`           // "added tcpilot-cni to /etc/cni/net.d/10-flannel.conflist, behind portmap", ...
	Stays   string   `json:"stays,omitempty"`   // what was not removed, and why
	Waits   []string `json:"waits,omitempty"`   // pods whose end the removal waits for
	Warning string   `json:"warning,omitempty"` // what in the network configuration does not fit the plugin
	// Sandboxes is how many pods have ended whose sandboxes the container runtime has not removed yet: the removal waits for that.
	Sandboxes int `json:"sandboxes,omitempty"`
}

// followInterval is how often cni install --follow looks for a configuration that lost the plugin.
// A network plugin writes its file anew when it starts, and few pods start in that time.
const followInterval = 10 * time.Second

func (a *app) cni() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Add the CNI plugin to this node's network configuration, or remove it",
		Long: `Add the CNI plugin tcpilot-cni to the network configuration of this node's container
runtime, behind the plugins that are there, or remove it; or remove what pods have
left whose end the plugins were not told of. docs/pods.md says what the plugin does.`,
		Example: "  sudo tcpilot cni install\n  sudo tcpilot cni gc --dry-run\n  sudo tcpilot cni uninstall",
	}
	console.Group(cmd)
	cmd.AddCommand(a.cniInstall(), a.cniUninstall(), a.cniCollect())
	return cmd
}

// nodeFlags adds the flags that say where the container runtime looks.
func nodeFlags(cmd *cobra.Command, o *CNIOptions) {
	f := cmd.Flags()
	f.StringVar(&o.ConfDir, "conf-dir", "/etc/cni/net.d", "`DIR` of the container runtime's network configurations")
	f.StringVar(&o.BinDir, "bin-dir", "/opt/cni/bin", "`DIR` of the container runtime's plugins")
	f.StringVar(&o.Records, "pods-dir", config.Default().Pods.Dir, "`DIR` of the records of pods, as pods.dir of the daemon's configuration")
	for _, name := range []string{"conf-dir", "bin-dir", "pods-dir"} {
		cobra.CheckErr(cmd.MarkFlagDirname(name))
	}
}

func (a *app) cniInstall() *cobra.Command {
	var o CNIOptions
	var m mainFlags
	follow := false
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Add the plugin to the network configuration, if the daemon runs",
		Long: `Copy tcpilot-cni to the plugins of this node, and add it to the network configuration
that the container runtime uses: the first file by name in --conf-dir. All else in the
file stays as it is, byte for byte, and the runtime finds the old file or the new one.
Nothing is changed unless the daemon answers on its socket.

Nothing is changed either if pods could not start with the plugin: it must support
the file's cniVersion and all of cniVersions (0.3.0 to 1.1.0), and --bin-dir must
have the programs of the file's other plugins, because the runtime looks for
tcpilot-cni where it finds them.

With --main, the plugin makes the pods' interfaces itself, and the node has no other
network plugin: the command writes 10-tcpilot.conflist into --conf-dir, with addresses
of host-local from the networks that the cluster has given to this node (podCIDRs),
IPv4, IPv6 or both, masquerading, and host ports by portmap. The networks come from
the API server (--kubeconfig, or the pod's service account), or from --pod-cidr. Name
the networks of all nodes' pods with --cluster-cidr, so that pods see each other's
addresses.

With --follow, the command waits until the daemon runs and a network plugin has written
its file, and adds the plugin again if that file is replaced, which it looks for
every 10 s. It ends with SIGINT or SIGTERM, and then leaves the plugin in place: pods
start without the daemon too.`,
		Example: "  sudo tcpilot cni install\n  sudo tcpilot cni install --main --pod-cidr 10.1.0.0/24,fd00:1::/64 --cluster-cidr 10.1.0.0/16,fd00:1::/48\n  sudo tcpilot cni install --conf-dir /var/lib/rancher/k3s/agent/etc/cni/net.d --bin-dir /var/lib/rancher/k3s/data/cni",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Socket = a.socket
			if err := m.into(&o); err != nil {
				return err
			}
			if follow {
				return a.followCNI(cmd.Context(), o)
			}
			did, err := a.installCNI(cmd.Context(), &o)
			if err != nil {
				return err
			}
			return console.EmitValue(a.Output, did, func(w io.Writer, c CNIChange) {
				renderCNI(w, c, "nothing to do: the plugin is installed")
				if c.Warning != "" {
					fmt.Fprintf(w, "%s %s\n", a.Paint.Warn("warning:"), c.Warning)
				}
			})
		},
	}
	nodeFlags(cmd, &o)
	cmd.Flags().StringVar(&o.Program, "plugin", "", "the plugin's `PROGRAM` (default: tcpilot-cni beside tcpilot or in PATH, or what is in --bin-dir)")
	cmd.Flags().BoolVar(&follow, "follow", false, "wait for the daemon, and keep the plugin in the configuration")
	m.add(cmd, &o)
	a.JSONFlag(cmd, "write JSON: what was changed")
	return cmd
}

// mainFlags are the networks of the main plugin as text.
type mainFlags struct{ pod, cluster []string }

// add adds the flags of the main plugin.
func (m *mainFlags) add(cmd *cobra.Command, o *CNIOptions) {
	f := cmd.Flags()
	f.BoolVar(&o.Main, "main", false, "write a network configuration with it as the main plugin")
	f.StringSliceVar(&m.pod, "pod-cidr", nil, "`NETWORK` of this node's pods (default: from the API server)")
	f.StringSliceVar(&m.cluster, "cluster-cidr", nil, "`NETWORK` of all nodes' pods, which is not masqueraded")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: the service account of this pod)")
	f.StringVar(&o.Node, "node", "", "`NAME` of this node (default: NODE_NAME, or the host's name)")
	for _, name := range []string{"pod-cidr", "cluster-cidr", "node"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
}

// into parses the networks.
func (m *mainFlags) into(o *CNIOptions) error {
	if !o.Main && (len(m.pod) > 0 || len(m.cluster) > 0 || o.Kubeconfig != "" || o.Node != "") {
		return console.Usagef("--pod-cidr, --cluster-cidr, --kubeconfig and --node are for --main")
	}
	for _, list := range []struct {
		flag  string
		texts []string
		to    *[]netip.Prefix
	}{{"pod-cidr", m.pod, &o.PodCIDRs}, {"cluster-cidr", m.cluster, &o.Cluster}} {
		for _, text := range list.texts {
			p, err := netip.ParsePrefix(text)
			if err != nil || p != p.Masked() {
				return console.Usagef("--%s: %q is not a network such as 10.1.0.0/24 or fd00:1::/64", list.flag, text)
			}
			*list.to = append(*list.to, p)
		}
	}
	return nil
}

// installCNI adds the plugin if the daemon answers the question that the plugin asks it. It keeps in o which networks the node's pods have: the
// API server does not change them.
func (a *app) installCNI(ctx context.Context, o *CNIOptions) (CNIChange, error) {
	ctx, cancel := context.WithTimeout(ctx, followInterval)
	defer cancel()
	client := a.client()
	defer client.Close()
	if _, err := client.SyncPods(ctx); err != nil {
		return CNIChange{}, fmt.Errorf("the plugin is not installed before the daemon is ready: %w", err)
	}
	if o.Main && len(o.PodCIDRs) == 0 {
		var err error
		if o.PodCIDRs, err = a.PodCIDRs(ctx, *o); err != nil {
			return CNIChange{}, err
		}
	}
	return a.InstallCNI(*o)
}

// followCNI keeps the plugin installed. A failure or warning is written when it differs from the one before.
func (a *app) followCNI(ctx context.Context, o CNIOptions) error {
	for last, wait := "", time.Second; ; {
		did, err := a.installCNI(ctx, &o)
		if ctx.Err() != nil {
			return nil
		}
		for _, line := range did.Changed {
			fmt.Fprintln(a.Stdout, line)
		}
		text := ""
		switch {
		case err != nil:
			text = err.Error() + "; trying again"
		case did.Warning != "":
			text = "warning: " + did.Warning
		}
		if err == nil {
			wait = followInterval
		}
		if text != "" && text != last {
			fmt.Fprintln(a.Stderr, text)
		}
		last = text
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (a *app) cniUninstall() *cobra.Command {
	var o CNIOptions
	follow := false
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the plugin from the network configuration",
		Long: `Remove tcpilot-cni from all network configurations in --conf-dir, so that each is again
as it would be if the plugin had never been added. Running pods are not affected.

Then its program is removed, unless pods have been recorded that still run: container
runtimes need it to end them. Then the command says for which pods it waits, and
ends with 0. No daemon is needed.

A configuration in which the plugin is the main one stays, because pods could not start
without it. With --main, the file that 'cni install --main' has written is removed,
and no new pod starts until the node has another network plugin. As long as pods of
the plugin run, the file zz-tcpilot-uninstalled.conflist replaces it. With that file
pods can end, but not start. The last one that ends removes that file and the
program.

In Kubernetes, the node is not ready then. Kubernetes deletes pods of a node that is
not ready after 5 minutes (tolerationSeconds of node.kubernetes.io/not-ready), unless
they tolerate it for longer: uninstall one node after another, or have the next network
plugin ready.

A chained plugin's program is removed when the command is repeated, or by --follow.
'cni install' cancels a removal that waits. Use --force only if there are no such pods
any more, or if the runtime does not need the plugin to end them: it removes everything
at once.

With --follow, the command removes the plugin from the network configurations at
once, waits until no pod needs the program any more, and removes it then. It does not
end before SIGINT or SIGTERM, for DaemonSets, whose containers are started again when
they end.`,
		Example: "  sudo tcpilot cni uninstall\n  sudo tcpilot cni uninstall --force",
		Args:    console.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Socket = a.socket
			did, err := a.uninstallCNI(o)
			if err == nil && follow {
				err = a.followUninstall(cmd.Context(), o, did)
			}
			return err
		},
	}
	nodeFlags(cmd, &o)
	cmd.Flags().BoolVar(&follow, "follow", false, "remove the program when no pod needs it, and wait for a signal")
	cmd.Flags().BoolVar(&o.Main, "main", false, "remove the file that 'cni install --main' has written")
	cmd.Flags().BoolVar(&o.Force, "force", false, "remove everything at once, also if pods may need it to end")
	a.JSONFlag(cmd, "write JSON: what was changed, and which pods are waited for")
	return cmd
}

// uninstallCNI removes the plugin and says what it removed.
func (a *app) uninstallCNI(o CNIOptions) (CNIChange, error) {
	did, err := a.UninstallCNI(o)
	if err != nil {
		return did, err
	}
	return did, a.emitUninstalled(did)
}

func (a *app) emitUninstalled(did CNIChange) error {
	return console.EmitValue(a.Output, did, func(w io.Writer, c CNIChange) { renderCNI(w, c, "nothing to do: the plugin is not installed") })
}

// removalInterval is how often cni uninstall --follow looks whether pods still need the program.
const removalInterval = 2 * time.Second

// followUninstall repeats the removal until the program is removed, too, and waits for the end of ctx. last is the
// outcome of the first removal, which succeeded: from then on, a failure is written when it differs from
// the one before, and the removal is repeated.
func (a *app) followUninstall(ctx context.Context, o CNIOptions, last CNIChange) error {
	failed := ""
	for last.Stays != "" {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(removalInterval):
		}
		did, err := a.UninstallCNI(o)
		if err != nil {
			if failed != err.Error() {
				failed = err.Error()
				fmt.Fprintf(a.Stderr, "%s; trying again\n", failed)
			}
			continue
		}
		if failed = ""; len(did.Changed) > 0 || did.Stays != last.Stays {
			if err := a.emitUninstalled(did); err != nil {
				return err
			}
		}
		last = did
	}
	<-ctx.Done()
	return nil
}

// RemovalWaits is what a removal of the plugin waits for, "for the end of 2 pods: shop/web-1, shop/web-2"; empty if it does not wait.
func RemovalWaits(pods []string, sandboxes int) string {
	const most = 5
	switch n := len(pods); {
	case n > most:
		return fmt.Sprintf("for the end of %d pods: %s and others", n, strings.Join(pods[:most], ", "))
	case n > 1:
		return fmt.Sprintf("for the end of %d pods: %s", n, strings.Join(pods, ", "))
	case n == 1:
		return "for the end of pod " + pods[0]
	case sandboxes > 0:
		return fmt.Sprintf("for the container runtime, which removes what it has of ended pods: %d", sandboxes)
	}
	return ""
}

func renderCNI(w io.Writer, c CNIChange, nothing string) {
	lines := c.Changed
	if c.Stays != "" {
		lines = append(lines, c.Stays)
	}
	if len(lines) == 0 {
		lines = []string{nothing}
	}
	fmt.Fprintln(w, strings.Join(lines, "\n"))
}
