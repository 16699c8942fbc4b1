package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
	"github.com/tcpilot/tcpilot/internal/tcp"
)

// largest is a ResponseWriter that notes the largest piece written to it.
type largest struct {
	http.ResponseWriter
	h          http.Header
	text       []byte
	most, size int
	keep       bool
	deadline   time.Time // of writes
}

func (l *largest) Header() http.Header                { return l.h }
func (l *largest) WriteHeader(int)                    {}
func (l *largest) SetWriteDeadline(d time.Time) error { l.deadline = d; return nil }
func (l *largest) Write(b []byte) (int, error) {
	l.most, l.size = max(l.most, len(b)), l.size+len(b)
	if l.keep {
		l.text = append(l.text, b...)
	}
	return len(b), nil
}

func manyPaths(n int) []*engine.PathState {
	cc, _ := tcp.ParseCC("cubic")
	list := make([]*engine.PathState, n)
	for i := range list {
		list[i] = &engine.PathState{Rule: "web", Prefix: "192.0.2.0/24", Samples: uint64(i), Arms: []engine.PathArm{{CC: cc, Weight: 1}}}
	}
	return list
}

// The text of all paths is never in memory as a whole.
func TestPathsAreWrittenOneByOne(t *testing.T) {
	list := manyPaths(20_000)
	for _, v := range []any{PathList{Paths: list}, &engine.Snapshot{Paths: list}} {
		w := &largest{h: http.Header{}}
		writeJSON(w, http.StatusOK, v)
		if w.size < 5<<20 || w.most > 64<<10 {
			t.Errorf("%T: %d bytes, in pieces of up to %d, want at most 64 KiB", v, w.size, w.most)
		}
	}
}

// The text is the same as that of the whole document.
func TestPathsOneByOneAreTheSameDocument(t *testing.T) {
	for n := range 3 {
		for _, v := range []any{PathList{Paths: manyPaths(n), Total: 7, Next: "x"}, &engine.Snapshot{Paths: manyPaths(n), Learner: "thompson"}} {
			w := &largest{h: http.Header{}, keep: true}
			writeJSON(w, http.StatusOK, v)
			want, err := json.MarshalIndent(v, "", "  ")
			if err != nil || string(w.text) != string(want)+"\n" {
				t.Errorf("%T of %d paths: %v\n got %s\nwant %s", v, n, err, w.text, want)
			}
		}
	}
}

// A client that does not read an answer does not block the server.
func TestAnswersHaveADeadline(t *testing.T) {
	s := NewServer(&stub{}, -1, slog.New(slog.DiscardHandler))
	w := &largest{h: http.Header{}}
	r, _ := http.NewRequest("GET", pathRules, nil)
	s.Handler(t.Context()).ServeHTTP(w, r)
	if left := time.Until(w.deadline); w.size == 0 || left <= 0 || left > askTimeout {
		t.Errorf("an answer of %d bytes has %v", w.size, left)
	}
}
