package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"sync"

	"github.com/tcpilot/tcpilot/internal/cgroup"
	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/learn"
	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/tcpinfo"
)

// loadConfig reads the named file, or the default one if none is named and it exists. It
// returns which file it read; empty is none.
func loadConfig(file string) (cfg *config.Config, read string, err error) {
	if file != "" {
		cfg, err = config.Load(file)
		return cfg, file, err
	}
	cfg, err = config.Load(config.DefaultFile)
	if errors.Is(err, fs.ErrNotExist) {
		return config.Default(), "", nil
	}
	return cfg, config.DefaultFile, err
}

func newLogger(w io.Writer, c config.Log) *slog.Logger {
	opt := &slog.HandlerOptions{Level: c.Level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}

func newLearner(c config.Learning) learn.Learner {
	if c.Learner == "epsilon-greedy" {
		return learn.NewEpsilonGreedy(learn.PublishedEpsilon, learn.PublishedRate)
	}
	return learn.NewThompson(learn.ThompsonOptions{HalfLife: c.HalfLife})
}

// resolver looks up the kernel's ids of cgroups and namespaces.
func resolver() policy.Resolver {
	return policy.Resolver{
		Cgroup: cgroup.IDs,
		NetNS: func(name string) (uint64, bool) {
			if cookie, err := strconv.ParseUint(name, 10, 64); err == nil {
				return cookie, true
			}
			cookie, err := netns.Cookie(name)
			return cookie, err == nil
		},
	}
}

// cgroupProblem describes why the root of the visible cgroup hierarchy is only a part of the
// host; empty if it is not, or if the configuration names a cgroup.
func cgroupProblem(cfg *config.Config, dir string) string {
	if cfg.Cgroup != "" {
		return ""
	}
	if whole, err := cgroup.IsWhole(dir); err != nil || whole {
		return ""
	}
	return dir + " is not the root of the host's cgroup hierarchy: this is a private cgroup namespace, so that only connections " +
		"of this container are tuned. Run tcpilot in the host's cgroup namespace (docker run --cgroupns=host) with the host's " +
		"cgroup2 hierarchy mounted, or set cgroup if that is what you want"
}

const (
	ownPIDNS = "/proc/self/ns/pid"
	// hostPIDNS is the link of the initial PID namespace (PROC_PID_INIT_INO in
	// include/linux/proc_ns.h).
	hostPIDNS = "pid:[4026531836]"
)

// pidProblem describes what cannot be seen from a private PID namespace, if link (that of ownPIDNS)
// is one; empty if it is not, or if the configuration names a cgroup.
func pidProblem(cfg *config.Config, link string) string {
	if cfg.Cgroup != "" || link == hostPIDNS || link == "" {
		return ""
	}
	return "this is a private PID namespace, in which the network namespaces of other containers cannot be found: their " +
		"connections are tuned and sampled at their end, but not while they run, and settings of their owners are overridden. " +
		"Run tcpilot in the host's PID namespace (docker run --pid=host, hostPID: true)"
}

// partProblems describes why only a part of the host is tuned.
func partProblems(cfg *config.Config, cgroupDir string) (list []string) {
	if p := cgroupProblem(cfg, cgroupDir); p != "" {
		list = append(list, p)
	}
	link, _ := os.Readlink(ownPIDNS) // unknown if there is no /proc, which others report
	if p := pidProblem(cfg, link); p != "" {
		list = append(list, p)
	}
	if have, err := capabilities(); err == nil {
		list = append(list, privilegeProblems(have)...)
	}
	return list
}

// timeoutProblems describes what rules with on_rto do not get from this kernel.
func timeoutProblems(rules []policy.Rule, countsAll func() (bool, error)) (list []string) {
	for i := range rules {
		if o := rules[i].OnRTO; o == (policy.OnRTO{}) || o.After == 1 {
			continue
		}
		if all, err := countsAll(); err != nil || all {
			return nil // an untested kernel is not reported as a problem
		}
		list = append(list, fmt.Sprintf("rule %s: on_rto counts timeouts in succession only, because this kernel has no total of a connection's timeouts (Linux 6.7 and later has)", rules[i].Name))
	}
	return list
}

// countsTimeouts is tcpinfo.CountsTimeouts, whose answer does not change.
var countsTimeouts = sync.OnceValues(tcpinfo.CountsTimeouts)

func parseCCs(names []string) []tcp.CC {
	out := make([]tcp.CC, 0, len(names))
	for _, n := range names {
		if cc, ok := tcp.ParseCC(n); ok {
			out = append(out, cc)
		}
	}
	return out
}

// groupID is the number of a group given by name or number; -1 for none.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if id, err := strconv.Atoi(name); err == nil {
		return id, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("find group of API socket: %w", err)
	}
	return strconv.Atoi(g.Gid)
}
