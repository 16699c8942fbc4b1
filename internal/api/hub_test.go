package api

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

func TestSlowSubscriberLosesSamplesAndBlocksNobody(t *testing.T) {
	var h Hub
	slow, err := h.subscribe(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := h.subscribe(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		h.Publish(&tcp.Sample{Cookie: uint64(i)})
	}
	if slow.missed() != 8 || fast.missed() != 0 || h.Lost() != 8 {
		t.Errorf("lost: slow %d, fast %d, all %d; want 8, 0, 8", slow.missed(), fast.missed(), h.Lost())
	}
	for i := range 10 {
		if s := <-fast.C; s.Cookie != uint64(i) {
			t.Fatalf("sample %d has cookie %d", i, s.Cookie)
		}
	}
	if s := <-slow.C; s.Cookie != 0 {
		t.Errorf("the slow one lost the oldest, want the newest lost")
	}
}

func TestSubscriptionEnds(t *testing.T) {
	var h Hub
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := h.Subscribe(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := h.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	s.close()
	cancel()
	for deadline := time.Now().Add(5 * time.Second); len(h.load()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d subscriptions left", len(h.load()))
		}
	}
}

func TestSubscribersAreBounded(t *testing.T) {
	var h Hub
	for range maxStreams {
		if _, err := h.Subscribe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.Subscribe(t.Context())
	var e *Error
	if !errors.As(err, &e) || e.Code != http.StatusServiceUnavailable || e.Hint == "" {
		t.Errorf("error %v, want 503 with a hint", err)
	}
}

func TestPublishDoesNotAllocate(t *testing.T) {
	var h Hub
	var s tcp.Sample
	if n := testing.AllocsPerRun(100, func() { h.Publish(&s) }); n != 0 {
		t.Errorf("%v allocations without a watcher", n)
	}
	if _, err := h.subscribe(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { h.Publish(&s) }); n != 0 {
		t.Errorf("%v allocations with one", n)
	}
}
