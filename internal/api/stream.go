package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/tcpilot/tcpilot/internal/engine"
)

// streamKeepalive is how often an idle stream is flushed, to detect that the client is gone.
const streamKeepalive = time.Second

// samples streams the samples that pass the filter until the client disconnects or ctx, the
// server's, ends. A write may block: then only the subscription fills up. A client that does
// not read at all is disconnected.
func (s *Server) samples(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	f, err := parseSampleFilter(r.URL.Query())
	if err != nil {
		writeError(w, asError(err))
		return
	}
	sub, err := s.backend.Samples(r.Context())
	if err != nil {
		writeError(w, asError(err))
		return
	}
	defer sub.close()
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // readTimeout is for requests
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	_ = out.Flush() // the client knows that it is subscribed

	buf := bufio.NewWriterSize(deadlineWriter{w, s.patience}, 64<<10)
	st := stream{enc: json.NewEncoder(buf), sub: sub, filter: f, snapshot: s.backend.Snapshot, pod: s.backend.PodName}
	tick := time.NewTicker(streamKeepalive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Context().Done():
			return
		case <-tick.C:
			err = st.drain()
		case sample := <-sub.C:
			if f.match(&sample) {
				line := FromSample(&sample)
				err = st.write(&line)
			}
			if err == nil {
				err = st.drain()
			}
		}
		if err == nil {
			err = buf.Flush()
		}
		if err != nil || out.Flush() != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.log.Warn("disconnected a reader of samples that read nothing", "after", s.patience)
			}
			return
		}
	}
}

// stream writes the lines of one client.
type stream struct {
	enc      *json.Encoder
	sub      *Subscription
	filter   SampleFilter
	told     uint64 // losses that were reported to the client
	snapshot func() *engine.Snapshot
	seen     *engine.Snapshot
	names    map[uint32]string // rules by class, of seen
	pod      func(netns uint64) string
}

// drain writes all waiting samples, and the number of samples lost meanwhile.
func (st *stream) drain() error {
	for range streamBuffer {
		select {
		case sample := <-st.sub.C:
			if !st.filter.match(&sample) {
				continue
			}
			line := FromSample(&sample)
			if err := st.write(&line); err != nil {
				return err
			}
			continue
		default:
		}
		break
	}
	if lost := st.sub.missed(); lost != st.told {
		line := Sample{Kind: KindLost, Lost: lost - st.told}
		st.told = lost
		return st.enc.Encode(&line)
	}
	return nil
}

func (st *stream) write(line *Sample) error {
	if snap := st.snapshot(); snap != st.seen {
		st.seen, st.names = snap, make(map[uint32]string)
		if snap != nil {
			for _, r := range snap.Rules {
				st.names[r.Class] = r.Name
			}
		}
	}
	line.Rule, line.Pod = st.names[line.Class], st.pod(line.NetNS)
	return st.enc.Encode(line)
}
