package subject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/poddevice"
	"github.com/tcpilot/tcpilot/internal/podlink"
	"github.com/tcpilot/tcpilot/internal/undo"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// pods connects the pods of a layout to their nodes at Start, and disconnects them at Stop.
type pods struct {
	spec   Spec
	layout *topology.Layout
	home   *home    // the daemon's, if there is one
	chain  *chain   // of plugins; nil if the pods are connected without plugins
	daemon *tcpilot // on each node; nil if there is none
}

func newPods(s Spec, w World) (*pods, error) {
	p := &pods{spec: s, layout: w.Layout, home: &home{net: w.Net, name: s.Name}}
	if len(w.Layout.Pods) == 0 {
		return nil, errors.New("the network has no pods to connect")
	}
	if s.Join == topology.JoinHost && len(w.Layout.Pods) != 2 {
		return nil, fmt.Errorf("%s connects two pods, and the network has %d", s.Join, len(w.Layout.Pods))
	}
	if err := errors.Join(s.device(), s.routing()); err != nil {
		return nil, err
	}
	if s.Config != "" {
		var err error
		if p.daemon, err = newDaemon(s, w); err != nil {
			return nil, err
		}
		p.home = &p.daemon.home
	}
	if len(s.Plugins) > 0 {
		var err error
		if p.chain, err = newChain(s, w, p.home); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// newDaemon makes a tcpilot that runs on the nodes of pods. The cgroups of nodes contain
// those of their pods.
func newDaemon(s Spec, w World) (*tcpilot, error) {
	w.Tuned = nil
	for _, p := range w.Layout.Pods {
		if !slices.Contains(w.Tuned, p.Node) {
			w.Tuned = append(w.Tuned, p.Node)
		}
	}
	t, err := newTcpilot(s, w)
	if err != nil {
		return nil, err
	}
	t.pods = true
	return t, nil
}

// begin starts the daemons first, so that a plugin that asks them finds them.
func (p *pods) begin(ctx context.Context, u *undo.Stack) error {
	restore, err := p.layout.KeepLinks()
	if err != nil {
		return err
	}
	u.Push("", restore)
	if p.daemon != nil {
		if err := p.daemon.begin(ctx, u); err != nil {
			return err
		}
	}
	if p.chain == nil {
		err = p.layout.Join(p.spec.Join)
	} else {
		err = p.chain.begin(ctx, u)
	}
	if err != nil {
		return err
	}
	return p.layout.AwaitPods()
}

// state is `tcpilot pods --json` of each node, by its name; nil without a daemon.
func (p *pods) state(ctx context.Context) ([]byte, error) {
	if p.daemon == nil {
		return nil, nil
	}
	return p.daemon.ask(ctx, "pods")
}

func (p *pods) log() (text string) {
	if p.chain != nil {
		text = p.chain.log.String()
	}
	if p.daemon != nil {
		text += p.daemon.log()
	}
	return text
}

func (p *pods) close() error { return p.home.remove() }

// device returns ErrUnavailable if the subject asks for a device that the kernel does not have.
func (s Spec) device() error {
	netkit := s.Join == topology.JoinNetkit || slices.ContainsFunc(s.Plugins, func(p Plugin) bool {
		return p.Type == ownPlugin && strings.Contains(string(p.Keys["device"]), string(pod.Netkit))
	})
	for _, has := range poddevice.Try() {
		if netkit && has.Device == pod.Netkit && has.Err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, has.Err)
		}
	}
	return nil
}

// routing returns ErrUnavailable if its tcpilot routes packets of pods, and the kernel cannot do that. Connection
// tracking is loaded first if it is a module: nodes of clusters have it.
func (s Spec) routing() error {
	if !configRoutes(s.Config) {
		return nil
	}
	_ = exec.Command("modprobe", "nf_conntrack").Run() // it may be built in; Try says if it is missing
	if err := podlink.Try(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// checkPods checks what does not depend on the machine.
func (s Spec) checkPods() error {
	if (s.Join == "") == (len(s.Plugins) == 0) {
		return errors.New("it needs either pods, one of the ways without plugins, or cni, a list of plugins")
	}
	if s.Join != "" && !slices.Contains(topology.Joins, s.Join) {
		return fmt.Errorf("pods %q: it is one of %v", s.Join, topology.Joins)
	}
	if len(s.Annotations) > 0 && len(s.Plugins) == 0 {
		return errors.New("annotations are passed to plugins, and there are none")
	}
	for _, p := range s.Plugins {
		if err := p.check(); err != nil {
			return err
		}
	}
	return checkConfig(s.Config)
}

func (s Spec) whatPods() string {
	text := "pods by " + string(s.Join)
	if len(s.Plugins) > 0 {
		var types []string
		for _, p := range s.Plugins {
			types = append(types, p.Type)
		}
		text = "pods by " + strings.Join(types, ", ")
	}
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		text += fmt.Sprintf(", %s: %s", key, s.Annotations[key])
	}
	if s.Config != "" {
		text += ", tcpilot on the nodes"
	}
	return text
}

// Plugin is a CNI plugin of a chain.
type Plugin struct {
	Type string                     // the name of its program
	Keys map[string]json.RawMessage // of its configuration, without those that the subject sets
}
