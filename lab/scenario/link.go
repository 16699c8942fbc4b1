package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/config"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
	"github.com/tcpilot/tcpilot/lab/link"
	"github.com/tcpilot/tcpilot/lab/topology"
	"github.com/tcpilot/tcpilot/lab/workload"
)

// links reads what the links do. A queue in multiples of the bandwidth-delay product
// needs the delays of all links, so the delays are read first.
func (r *reader) links(n *node, g topology.Graph) map[string]Link {
	if n == nil {
		return nil
	}
	scratch := &reader{}
	delays := scratch.eachLink(n, g, func(string) time.Duration { return time.Second })
	return r.eachLink(n, g, func(edge string) time.Duration { return rttThrough(g, delays, edge) })
}

func (r *reader) eachLink(n *node, g topology.Graph, rtt func(edge string) time.Duration) map[string]Link {
	links := make(map[string]Link)
	var fields []field
	for _, e := range g.Edges {
		fields = append(fields, field{e.Name, func(n *node) { links[e.Name] = r.link(n, rtt(e.Name)) }})
	}
	r.fields(n, fields...)
	return links
}

// link reads one link. rtt is that of the longest path through it.
func (r *reader) link(n *node, rtt time.Duration) Link {
	var l Link
	forward := direction{r: r, spec: &l.Forward, rtt: rtt}
	backward := direction{r: r, spec: &l.Backward, rtt: rtt}
	var schedule *node
	r.both(n, &forward, &backward, field{"schedule", func(n *node) { schedule = n }})
	if schedule == nil || !r.Want(schedule, yamlfile.List) {
		return l
	}
	last := time.Duration(-1)
	for _, item := range schedule.Items {
		// A change starts from what the link did before it.
		c := Change{At: -1, Forward: l.Forward, Backward: l.Backward}
		if k := len(l.Schedule); k > 0 {
			c.Forward, c.Backward = l.Schedule[k-1].Forward, l.Schedule[k-1].Backward
		}
		forward.spec, backward.spec = &c.Forward, &c.Backward
		r.both(item, &forward, &backward, field{"at", r.duration(&c.At, 0, workload.MaxDuration)})
		switch {
		case item.Kind == yamlfile.Mapping && item.Get("at") == nil:
			r.Fail(item.Place, "a change without a time", "write at: and its time in the round, such as 10s")
		case c.At >= 0 && c.At <= last:
			r.Fail(item.Get("at").Place, "not later than the previous change", "put changes in the order of time")
		}
		last = max(last, c.At)
		l.Schedule = append(l.Schedule, c)
	}
	return l
}

// both reads a link's or a change's keys. Keys of a direction apply to both directions,
// unless forward or backward have their own.
func (r *reader) both(n *node, forward, backward *direction, own field) {
	if !r.Want(n, yamlfile.Mapping) {
		return
	}
	var rtt time.Duration
	common := []field{
		{"rtt", r.duration(&rtt, 0, 2*maxDelay)},
		{"forward", func(n *node) { r.Want(n, yamlfile.Mapping) }},
		{"backward", func(n *node) { r.Want(n, yamlfile.Mapping) }},
		own,
	}
	r.fields(n, append(common, (&direction{r: r, spec: &link.Spec{}, rtt: time.Second}).fields()...)...)
	for _, d := range []struct {
		side string
		*direction
	}{{"forward", forward}, {"backward", backward}} {
		if n.Get("rtt") != nil {
			d.spec.Delay = rtt / 2
		}
		d.read(without(n, keysOf(common)...))
		if own := n.Get(d.side); own != nil && own.Kind == yamlfile.Mapping {
			d.read(own)
			d.check(own, n)
		} else {
			d.check(n)
		}
	}
}

// minQueue, in bytes, is the smallest queue that a multiple of the bandwidth-delay
// product gives: two full Ethernet frames.
const minQueue = 2 * 1514

// direction reads the keys of one direction of a link.
type direction struct {
	r    *reader
	spec *link.Spec
	rtt  time.Duration // of the whole path, for queues
	bdp  float64       // the queue in multiples of the bandwidth-delay product; 0 if it is not
	at   *node         // the queue's place in the file
}

func (d *direction) read(n *node) {
	d.r.fields(n, d.fields()...)
}

func (d *direction) fields() []field {
	r, s := d.r, d.spec
	return []field{
		{"delay", r.duration(&s.Delay, 0, maxDelay)},
		{"jitter", r.duration(&s.Jitter, 0, maxDelay)},
		{"reorder", r.share(&s.Reorder)},
		{"loss", r.share(&s.Loss)},
		{"bursts", func(n *node) {
			s.Bursts = link.Bursts{}
			r.fields(n,
				field{"to_bad", r.share(&s.Bursts.ToBad)}, field{"to_good", r.share(&s.Bursts.ToGood)},
				field{"loss_bad", r.share(&s.Bursts.LossBad)}, field{"loss_good", r.share(&s.Bursts.LossGood)})
			if s.Bursts != (link.Bursts{}) && (s.Bursts.ToBad == 0 || s.Bursts.ToGood == 0 || s.Bursts.LossBad == 0) {
				r.Fail(n.Place, "loss in bursts needs the chances of both state changes and of loss", "give to_bad, to_good and loss_bad")
			}
		}},
		{"rate", r.rate(&s.Rate)},
		{"queue", d.queue},
		{"ecn", r.size(&s.ECN)},
		{"policer", func(n *node) {
			s.Policer = link.Policer{}
			r.fields(n, field{"rate", r.rate(&s.Policer.Rate)}, field{"burst", r.size(&s.Policer.Burst)})
		}},
		{"offload", r.bool(&s.Offload)},
	}
}

// queue reads the length of the rate's queue: "64KiB", "1000p" or "1.5bdp".
func (d *direction) queue(n *node) {
	if !d.r.Want(n, yamlfile.Text) {
		return
	}
	bytes, packets, bdp, err := parseQueue(n.Text)
	if err != nil {
		d.r.Wrong(n, err)
		return
	}
	d.spec.Queue = link.Queue{Bytes: bytes, Packets: packets}
	d.bdp, d.at = bdp, n
}

func parseQueue(s string) (bytes, packets uint64, bdp float64, err error) {
	if s == "0" { // the default, instead of an inherited value
		return 0, 0, 0, nil
	}
	bad := &yamlfile.Error{Problem: fmt.Sprintf("%q is not a queue", s),
		WhatToDo: "write a size such as 64KiB, packets as 1000p, or a multiple of the bandwidth-delay product as 1.5bdp"}
	if number, ok := strings.CutSuffix(s, "bdp"); ok {
		bdp, err = strconv.ParseFloat(number, 64)
		if err != nil || !(bdp > 0 && bdp <= 1000) {
			return 0, 0, 0, bad
		}
		return 0, 0, bdp, nil
	}
	if number, ok := strings.CutSuffix(strings.TrimSuffix(s, "ackets"), "p"); ok {
		packets, err = strconv.ParseUint(strings.TrimSuffix(number, " "), 10, 24)
		if err != nil || packets == 0 {
			return 0, 0, 0, bad
		}
		return 0, packets, 0, nil
	}
	if bytes, err = config.ParseSize(s); err != nil || bytes == 0 || bytes > maxSize {
		return 0, 0, 0, bad
	}
	return bytes, 0, 0, nil
}

// check fills in the queue, now that the rate is known, and reports what Spec.Check
// finds, at the place of the key in one of the mappings.
func (d *direction) check(in ...*node) {
	s := d.spec
	if d.bdp > 0 && s.Rate > 0 {
		if d.rtt == 0 {
			d.r.Fail(d.at.Place, "no bandwidth-delay product without a delay", "give the links a delay, or the queue a size")
			return
		}
		s.Queue.Bytes = max(uint64(d.bdp*float64(s.Rate)/8*d.rtt.Seconds()), minQueue)
	}
	d.bdp = 0
	if err := s.Check(); err != nil {
		d.r.wrong(in[0], err, in[1:]...)
	}
}
