package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/lab/load"
	"github.com/tcpilot/tcpilot/lab/measure"
)

// iperf3 runs iperf3, with which the agents' bulk streams are compared, as often as the
// part's count says.
func (l *hostPair) iperf3(ctx context.Context) {
	for range max(l.Count, 1) {
		if err := l.iperf3Once(ctx); err != nil && ctx.Err() == nil {
			l.fail(err)
		}
	}
}

func (l *hostPair) iperf3Once(ctx context.Context) error {
	port := programPort + l.number
	server, err := l.start(l.to, "iperf3", "-s", "-1", "-p", strconv.Itoa(port))
	if err != nil {
		return err
	}
	defer server.stop()
	if err := server.serving(ctx, port); err != nil {
		return err
	}
	args := []string{"-J", "-c", l.layout.Addr(l.to, l.IPv6).String(), "-p", strconv.Itoa(port),
		"-t", strconv.Itoa(int(l.Duration / time.Second)), "-P", strconv.Itoa(l.streams()),
		"-i", strconv.FormatFloat(l.Sample.Seconds(), 'f', -1, 64),
		"--connect-timeout", strconv.Itoa(int(programOvertime / 2 / time.Millisecond))}
	if l.CC != "" {
		args = append(args, "-C", l.CC)
	}
	begin := load.Now()
	client, err := l.start(l.from, "iperf3", args...)
	if err != nil {
		return err
	}
	defer client.stop()
	err = client.wait(ctx, l.Duration+programOvertime)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	entries, perr := parseIperf3(client.out.Bytes())
	if perr != nil {
		return perr // it is more specific than the exit code
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		c := l.connection(false)
		e.Group, e.From, e.To, e.Start = c.Group, c.From, c.To, l.at(begin)
		for i := range e.points {
			e.points[i].At += e.Start
		}
		l.add(e)
		l.sum(e.Connection, 0)
	}
	return nil
}

// iperf3Report is the part of iperf3's output with -J that is used. Round trips are in
// microseconds, sampled once an interval; the window is in bytes.
type iperf3Report struct {
	Error string
	Start struct {
		MSS float64 `json:"tcp_mss_default"`
	}
	Intervals []struct {
		Streams []struct {
			Socket      int
			End         float64 // seconds
			BitsPerSec  float64 `json:"bits_per_second"`
			Retransmits uint32
			Cwnd        float64 `json:"snd_cwnd"`
			RTT         measure.RTT
		}
	}
	End struct {
		CC      string `json:"sender_tcp_congestion"`
		Streams []struct {
			Sender struct {
				Socket      int
				Seconds     float64
				Bytes       uint64
				Retransmits uint32
				MinRTT      measure.RTT `json:"min_rtt"`
				MeanRTT     measure.RTT `json:"mean_rtt"`
			}
			Receiver struct{ Bytes uint64 }
		}
	}
}

// parseIperf3 makes connections of a client's report. iperf3 does not count segments, so
// they are computed: the bytes over the MSS, plus the retransmits.
func parseIperf3(raw []byte) ([]entry, error) {
	var r iperf3Report
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("read iperf3's report: %w", err)
	}
	if r.Error != "" {
		return nil, fmt.Errorf("run iperf3: %s", strings.TrimPrefix(r.Error, "error - "))
	}
	entries := make([]entry, len(r.End.Streams))
	mss := max(r.Start.MSS, 1)
	for i, s := range r.End.Streams {
		e := &entries[i]
		e.Elapsed = time.Duration(s.Sender.Seconds * float64(time.Second))
		e.Bytes, e.Delivered = s.Receiver.Bytes, true
		e.CC = r.End.CC
		e.Retrans = s.Sender.Retransmits
		e.Segments = uint32(float64(s.Sender.Bytes)/mss) + e.Retrans
		e.MinRTT, e.MeanRTT = s.Sender.MinRTT, s.Sender.MeanRTT
		e.SRTT = e.MeanRTT
		var retrans uint32
		for _, n := range r.Intervals {
			for _, p := range n.Streams {
				if p.Socket != s.Sender.Socket {
					continue
				}
				retrans += p.Retransmits
				e.SRTT = p.RTT
				e.points = append(e.points, measure.Point{
					At: time.Duration(p.End * float64(time.Second)), Goodput: p.BitsPerSec, SRTT: e.SRTT,
					Cwnd: uint32(p.Cwnd / mss), Retrans: retrans, CC: r.End.CC,
				})
			}
		}
	}
	return entries, nil
}
