package api

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// Hub passes samples to its subscribers. Its zero value is ready.
type Hub struct {
	subs atomic.Pointer[[]*Subscription] // replaced whole under mu, never changed
	mu   sync.Mutex
	lost atomic.Uint64
}

// Subscription is one subscriber of a Hub.
type Subscription struct {
	// C is never closed: the subscription ends with its context or Close.
	C    <-chan tcp.Sample
	c    chan tcp.Sample
	hub  *Hub
	lost atomic.Uint64
	once sync.Once
	stop func() bool
}

// streamBuffer is how many samples a subscriber may be behind before it loses some:
// about 1 MB, and 0.8 s at 5,000 connections a second.
const streamBuffer = 4096

// maxStreams bounds the subscribers of one Hub, and so its memory.
const maxStreams = 8

// Subscribe returns a subscription that ends with ctx or Close.
func (h *Hub) Subscribe(ctx context.Context) (*Subscription, error) {
	return h.subscribe(ctx, streamBuffer)
}

func (h *Hub) subscribe(ctx context.Context, buffer int) (*Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.load()
	if len(old) >= maxStreams {
		return nil, Unavailable("%d clients already watch samples", len(old)).
			WithHint("end a 'tcpilot connections' or 'tcpilot record' first")
	}
	s := &Subscription{c: make(chan tcp.Sample, buffer), hub: h}
	s.C = s.c
	subs := append(append([]*Subscription(nil), old...), s)
	h.subs.Store(&subs)
	s.stop = context.AfterFunc(ctx, s.remove)
	return s, nil
}

// Publish passes *s to every subscriber. It never blocks, and costs one atomic load if there
// is no subscriber.
func (h *Hub) Publish(s *tcp.Sample) {
	for _, sub := range h.load() {
		select {
		case sub.c <- *s:
		default:
			sub.lost.Add(1)
			h.lost.Add(1)
		}
	}
}

// Lost counts the samples that subscribers missed because they were too slow.
func (h *Hub) Lost() uint64 { return h.lost.Load() }

func (h *Hub) load() []*Subscription {
	if p := h.subs.Load(); p != nil {
		return *p
	}
	return nil
}

// missed counts the samples that this subscriber missed because it was too slow.
func (s *Subscription) missed() uint64 { return s.lost.Load() }

// close ends the subscription. It may be called more than once.
func (s *Subscription) close() {
	s.stop()
	s.remove()
}

func (s *Subscription) remove() {
	s.once.Do(func() {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		old := s.hub.load()
		subs := make([]*Subscription, 0, len(old))
		for _, o := range old {
			if o != s {
				subs = append(subs, o)
			}
		}
		s.hub.subs.Store(&subs)
	})
}
