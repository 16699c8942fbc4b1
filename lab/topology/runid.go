package topology

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// prefix starts the name of every kernel object of a run.
const prefix = "tcpilot-"

// runID identifies one Net: the process that made it and a number within that
// process. The start time distinguishes processes that had the same pid.
type runID struct {
	pid   int
	start uint64 // field 22 of /proc/PID/stat: clock ticks since boot
	seq   uint32
}

var runs atomic.Uint32

func newRunID() (runID, error) {
	pid := os.Getpid()
	start, err := startTime(pid)
	if err != nil {
		return runID{}, fmt.Errorf("read own start time: %w", err)
	}
	return runID{pid: pid, start: start, seq: runs.Add(1)}, nil
}

// String is PID.START.SEQ. It contains no dash, because the first dash ends the id in
// a name.
func (id runID) String() string { return fmt.Sprintf("%d.%d.%d", id.pid, id.start, id.seq) }

// name is the name of an object of the run.
func (id runID) name(object string) string { return prefix + id.String() + "-" + object }

// parseName finds the run that an object belongs to; ok is false for names that are
// not of a run.
func parseName(name string) (id runID, ok bool) {
	run, _, ok := strings.Cut(strings.TrimPrefix(name, prefix), "-")
	if !ok || !strings.HasPrefix(name, prefix) {
		return runID{}, false
	}
	if _, err := fmt.Sscanf(run, "%d.%d.%d", &id.pid, &id.start, &id.seq); err != nil {
		return runID{}, false
	}
	return id, id.String() == run // Sscanf ignores what follows the last number
}

// alive reports whether the process that made the run still runs. A zombie counts as
// ended; a process whose state cannot be read counts as running.
func (id runID) alive() bool {
	start, err := startTime(id.pid)
	return !hasEnded(err) && (err != nil || start == id.start)
}

// hasEnded reports whether an error of startTime says that the process has ended.
func hasEnded(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, errEnded)
}

// errEnded reports that a process is a zombie: it has ended, and its parent has not
// waited for it.
var errEnded = errors.New("it has ended")

// startTime reads when a process started. The command, field 2, may contain any
// character, so fields are counted from its closing parenthesis.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(" "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("read /proc/%d/stat: too few fields", pid)
	}
	if state := string(fields[0]); state == "Z" || state == "X" {
		return 0, fmt.Errorf("read /proc/%d/stat: %w", pid, errEnded)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}
