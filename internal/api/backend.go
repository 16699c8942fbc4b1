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
	// Doctor says what the kernel allows. again: what was tried out before is tried out
	// again, which loads programs; else only what never was.
	Doctor(ctx context.Context, again bool) (Doctor, error)
	// Reload reads the configuration again. When it is not valid the old one
	// stays in force and the error says where it is wrong.
	Reload(ctx context.Context) (ReloadResult, error)
	// Detach takes every program and setting back and ends the daemon once the
	// answer is sent.
	Detach(ctx context.Context) error
	// SetRollout gives a rule another rollout, until the next reload.
	SetRollout(ctx context.Context, r RolloutRequest) (RuleRollout, error)
	Load(ctx context.Context, r LoadRequest) (Loaded, error)
	Unload(ctx context.Context, name string) error
	Loaded(ctx context.Context) ([]Loaded, error)
	// Controls lists tcpilot's own congestion controls and users' own.
	Controls(ctx context.Context) ([]CongestionControl, error)
	// LoadControl loads one of tcpilot's own, or a user's from a file.
	LoadControl(ctx context.Context, name string, r ControlRequest) (CongestionControl, error)
	UnloadControl(ctx context.Context, name string) (Unloaded, error)
}
