package kubeapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
)

const (
	maxEvents   = 64   // that wait to be written
	maxMessage  = 1024 // bytes (pkg/apis/core/validation: ValidateEvent, for events.k8s.io)
	eventPause  = 100 * time.Millisecond
	eventReason = "AnnotationNotFollowed"
)

// event is a warning about a pod.
type event struct {
	namespace, name, uid, message string
	at                            time.Time
}

// Warn writes an event about a pod, later. It is dropped if too many wait already, because the log has it too.
// It returns whether it will be written; not before the UID at the API server is known.
func (w *Watcher) Warn(p *pod.Pod, message string) bool {
	uid := w.UID(p)
	if uid == "" || p.Name == "" || p.Namespace == "" {
		return false
	}
	message = strings.ToValidUTF8(message[:min(len(message), maxMessage)], "") // no part of a character at the end
	select {
	case w.events <- event{p.Namespace, p.Name, uid, message, time.Now()}:
		return true
	default:
		return false
	}
}

// WriteEvents writes events until ctx ends, or until an error. After an error the caller waits, and calls it
// again.
func (w *Watcher) WriteEvents(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events:
			if err := w.write(ctx, &e); err != nil {
				if !refusedForever(err) {
					select {
					case w.events <- e: // for the next call
					default:
					}
				}
				if ctx.Err() == nil {
					return fmt.Errorf("write event about pod %s/%s: %v", e.namespace, e.name, err)
				}
				return nil
			}
		}
		select { // so that many pods with mistakes do not load the API server
		case <-ctx.Done():
		case <-time.After(eventPause):
		}
	}
}

// write writes one event. Its name is a hash of its contents, so that a daemon that starts again does not repeat it.
func (w *Watcher) write(ctx context.Context, e *event) error {
	sum := sha256.Sum256([]byte(e.uid + "\x00" + e.message))
	name := strings.TrimRight(e.name[:min(len(e.name), 200)], "-.") + ".tcpilot-" + hex.EncodeToString(sum[:8])
	at := e.at.UTC().Format(time.RFC3339)
	type keys = map[string]any
	body, err := json.Marshal(keys{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       keys{"namespace": e.namespace, "name": name},
		"involvedObject": keys{"apiVersion": "v1", "kind": "Pod", "namespace": e.namespace, "name": e.name, "uid": e.uid},
		"type":           "Warning", "reason": eventReason, "message": e.message,
		"source": keys{"component": "tcpilot", "host": w.opt.Node}, "reportingComponent": "tcpilot.io/daemon", "reportingInstance": w.opt.Node,
		"firstTimestamp": at, "lastTimestamp": at, "count": 1,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := w.do(ctx, http.MethodPost, "/api/v1/namespaces/"+e.namespace+"/events", nil, "application/json", body)
	if err == nil {
		return answer.Close()
	}
	var refused *apiError
	if errors.As(err, &refused) && (refused.code == http.StatusConflict || refused.code == http.StatusNotFound) {
		return nil // it is there already, or the namespace is gone
	}
	return err
}

// refusedForever reports whether the API server would refuse the same event again. Such an event is dropped, so that
// others do not wait behind it.
func refusedForever(err error) bool {
	var refused *apiError
	return errors.As(err, &refused) && (refused.code == http.StatusBadRequest || refused.code == http.StatusUnprocessableEntity)
}
