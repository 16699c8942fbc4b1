package load

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"
)

// ListenSpec says where a server should listen.
type ListenSpec struct {
	// Address is a literal address and port; [::]:0 is dual-stack.
	Address string
	// CC is the congestion control that the application sets on the listener; empty is
	// none.
	CC string
	// Network is tcp4 or tcp6 for a single family; empty is both at a wildcard address.
	Network string
}

// listening is where a server listens.
type listening struct {
	Address netip.AddrPort
}

// server serves the orders of load clients.
type server struct {
	l net.Listener
	// Read buffers are pooled: otherwise churn would allocate one per connection.
	buffers sync.Pool

	mu       sync.Mutex
	open     map[*net.TCPConn]struct{}
	accounts map[uint64]Account
}

// chunk is the size of one read or write of a bulk stream, in bytes.
const chunk = 128 << 10

// idle is the longest time without data after which a connection is closed, so that the
// connection of a dead client ends.
const idle = 30 * time.Second

// maxAccounts limits the memory of a server.
const maxAccounts = 1 << 20

func serve(l net.Listener) *server {
	s := &server{
		l:        l,
		buffers:  sync.Pool{New: func() any { b := make([]byte, chunk); return &b }},
		open:     map[*net.TCPConn]struct{}{},
		accounts: map[uint64]Account{},
	}
	go s.accept()
	return s
}

func (s *server) accept() {
	for {
		c, err := s.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptors left: wait until some are closed
			continue
		}
		tc := c.(*net.TCPConn)
		s.mu.Lock()
		s.open[tc] = struct{}{}
		s.mu.Unlock()
		go s.handle(tc)
	}
}

func (s *server) handle(c *net.TCPConn) {
	defer s.closed(c)
	var head [orderSize]byte
	c.SetReadDeadline(time.Now().Add(idle))
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return
	}
	o, err := decodeOrder(head[:])
	if err != nil {
		return
	}
	if err := setCongestionOf(c, o.cc.String()); err != nil {
		return // the client's read fails
	}
	if o.account != 0 {
		obs, err := observe(c, o.sample)
		if err != nil {
			return
		}
		defer s.keep(o.account, obs)
	}
	switch o.kind {
	case upload:
		s.upload(c, o)
	case download:
		s.download(c, o)
	case exchange:
		s.exchange(c, o)
	case transfer:
		s.transfer(c, o)
	case mux:
		s.mux(c, o)
	}
}

func (s *server) closed(c *net.TCPConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

func (s *server) keep(account uint64, obs *observer) {
	a, err := obs.end()
	if err != nil {
		return // the client's record then has no account
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.accounts) < maxAccounts {
		s.accounts[account] = a
	}
}

// collect ends the server and puts its accounts into all. Connections have until
// the deadline to end by themselves.
func (s *server) collect(deadline time.Time, all map[uint64]Account) error {
	err := s.l.Close()
	for s.end(time.Now().After(deadline)) > 0 {
		time.Sleep(time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(all, s.accounts)
	return err
}

// end returns the number of open connections. With force it resets them; their accounts are
// kept nevertheless.
func (s *server) end(force bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if force {
		for c := range s.open {
			c.SetLinger(0)
			c.SetDeadline(time.Now())
		}
	}
	return len(s.open)
}
