package api

import (
	"context"

	"github.com/tcpilot/tcpilot/internal/engine"
)

// Backend is the running daemon, as the API sees it. Its methods are called from
// many goroutines. An error that is, or wraps, an *Error keeps its code and
// hint; any other is an internal error.
type Backend interface {
	// Status has its counters named: see metrics.Counters.NameRules.
	Status(ctx context.Context) (Status, error)
	// Snapshot is the engine's latest, nil before the first.
	Snapshot() *engine.Snapshot
	Explain(ctx context.Context, r ExplainRequest) (Explanation, error)
	// Samples subscribes to every sample from now on; see Hub.
	Samples(ctx context.Context) (*Subscription, error)
	// Doctor reports what the kernel allows. again: all tests are repeated, which loads
	// programs; otherwise only tests that were never made are made.
	Doctor(ctx context.Context, again bool) (Doctor, error)
	// Reload reads the configuration again. If it is not valid, the old one stays in force,
	// and the error has the positions of the mistakes.
	Reload(ctx context.Context) (ReloadResult, error)
	// Detach removes every program and undoes every setting, and ends the daemon after the
	// answer is sent.
	Detach(ctx context.Context) error
	// SetRollout changes the rollout of a rule until the next reload.
	SetRollout(ctx context.Context, r RolloutRequest) (RuleRollout, error)
	Load(ctx context.Context, r LoadRequest) (Loaded, error)
	Unload(ctx context.Context, name string) error
	Loaded(ctx context.Context) (ProgramList, error)
	// Controls lists tcpilot's own congestion controls and those of users.
	Controls(ctx context.Context) (ControlList, error)
	// LoadControl loads one of tcpilot's own, or a user's from a file.
	LoadControl(ctx context.Context, r LoadControlRequest) (CongestionControl, error)
	UnloadControl(ctx context.Context, name string) (Unloaded, error)
	// Pods lists the pods of this host.
	Pods(ctx context.Context) (PodList, error)
	// SyncPods reads the records of pods, and puts the rules for them into force.
	SyncPods(ctx context.Context) (PodSync, error)
	// DetachPods gives the packets of all pods back to the host's stack until the next reload.
	DetachPods(ctx context.Context) error
	// PodName is the namespace/name of the pod of a network namespace, empty if there is none.
	// It is called for every sample of a stream.
	PodName(netns uint64) string
}
