package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/kubeapi"
	"github.com/tcpilot/tcpilot/internal/pod"
)

// podAPI is what the API server of Kubernetes reports about pods. Nothing waits for it: until it answers, pods have
// the annotations of their records.
type podAPI struct {
	watcher atomic.Pointer[kubeapi.Watcher] // nil until the access was read
	changed chan struct{}
	warned  map[podWarning]bool // events that were written; pods.mu protects it
}

type podWarning struct{ uid, text string } // uid is the API server's

// followPause is the shortest time between two readings because of changes at the API server.
const followPause = 200 * time.Millisecond

// podAPITasks are the tasks for an API server, if one is configured. They are separate, so that the one goes on if
// another one fails, for example because the service account may not write events.
func (d *Daemon) podAPITasks(cfg *config.Kubernetes) []task {
	if !cfg.Used() {
		return nil
	}
	a := &d.podAPI
	a.changed = make(chan struct{}, 1)
	return []task{
		{"annotations of pods from the API server", func(ctx context.Context) error { return a.follow(ctx, cfg, d.log) }},
		{"events about pods", a.writeEvents},
		{"changes of annotations", d.followAnnotations},
	}
}

// follow reads annotations from the API server and follows their changes.
func (a *podAPI) follow(ctx context.Context, cfg *config.Kubernetes, log *slog.Logger) error {
	w := a.watcher.Load()
	if w == nil {
		node, err := nodeName(cfg)
		if err != nil {
			return err
		}
		listed := func(pods int) {
			log.Info("annotations of pods come from the API server", "node", node, "pods", pods)
		}
		if w, err = kubeapi.Open(kubeapi.Options{Kubeconfig: cfg.Kubeconfig, Node: node, Changed: a.tell, Listed: listed}); err != nil {
			return err
		}
		a.watcher.Store(w)
	}
	return w.Run(ctx)
}

// nodeName is this node's name at the API server.
func nodeName(cfg *config.Kubernetes) (string, error) {
	if cfg.Node != "" {
		return cfg.Node, nil
	}
	name, err := kubeapi.NodeName()
	if err != nil {
		return "", fmt.Errorf("find name of the node: %w", err)
	}
	return name, nil
}

// tell notifies followAnnotations that annotations have changed.
func (a *podAPI) tell() {
	select {
	case a.changed <- struct{}{}:
	default: // it is notified already
	}
}

// writeEvents writes the events that warn adds.
func (a *podAPI) writeEvents(ctx context.Context) error {
	for a.watcher.Load() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	return a.watcher.Load().WriteEvents(ctx)
}

// followAnnotations puts changed annotations into force.
func (d *Daemon) followAnnotations(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.podAPI.changed:
		}
		if _, err := d.SyncPods(ctx); err != nil {
			d.podAPI.tell()
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
}

// annotate gives a pod the annotations that it has at the API server, if that knows the pod. Only the UID identifies
// a pod: the next pod of a StatefulSet has the name of the one before.
func (a *podAPI) annotate(p *pod.Pod) {
	w := a.watcher.Load()
	if w == nil || p.UID == "" {
		return
	}
	if annotations, known := w.Annotations(p.UID); known {
		p.Annotate(annotations)
	}
}

// warn writes an event for each annotation that is not followed, once. The caller has pods.mu.
func (a *podAPI) warn(v *podView) {
	w := a.watcher.Load()
	if w == nil || v == nil {
		return
	}
	now := map[podWarning]bool{}
	for _, p := range v.set.All() {
		for _, text := range v.warnings(p) {
			key := podWarning{w.UID(p), text}
			if a.warned[key] || w.Warn(p, text) {
				now[key] = true
			}
		}
	}
	a.warned = now
}
