package cc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// stage is one transfer of the test of a user's control.
type stage struct {
	name    string
	bytes   int
	minRate float64 // bytes per second
	// maxRetrans is the largest share of retransmitted packets. Slow start loses a
	// tenth when it fills the link's buffer for the first time.
	maxRetrans float64
}

// Loopback shows faults at high rates, the emulated link shows faults on a long path. Any
// control whose window grows reaches an eighth of the link's rate.
var (
	loopbackStage = stage{name: "over loopback", bytes: 16 << 20, minRate: 4 << 20, maxRetrans: 0.25}
	linkStage     = stage{name: "on a link of 40 Mbit/s and 20 ms", bytes: 4 << 20, minRate: float64(testShape.rate) / 8, maxRetrans: 0.25}
)

// tryOut registers o under the name TestName and sends data with it in a network namespace
// that nothing else uses. It is not pinned: the registration ends with the process.
func (o Control) tryOut(ctx context.Context, log *slog.Logger) error {
	ops, err := o.load(TestName)
	if err != nil {
		return err
	}
	defer ops.Close()
	l, err := attach(ops)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("another process is trying one at the moment: %w", err)
	}
	if err != nil {
		return err
	}
	defer l.Close()
	if err := netns.InNew(func() error { return tryStages(ctx, log) }); err != nil {
		return fmt.Errorf("it failed the test: %w", err)
	}
	return nil
}

// tryStages must run in a network namespace of its own.
func tryStages(ctx context.Context, log *slog.Logger) error {
	if err := rtnetlink.SetUp("lo"); err != nil {
		return err
	}
	here, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer here.Close()
	if err := loopbackStage.run(ctx, log, here, here.Addr().String()); err != nil {
		return err
	}
	there, err := bufferedListener(linkStage.bytes).Listen(ctx, "tcp4", "0.0.0.0:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer there.Close()
	port := there.Addr().(*net.TCPAddr).Port
	emulated, err := openEmulatedLink(uint16(port), testShape)
	if err != nil {
		return err
	}
	err = linkStage.run(ctx, log, there, net.JoinHostPort(remoteAddress, fmt.Sprint(port)))
	return errors.Join(err, emulated.close())
}

// run dials the address to, which must lead to l, and sends with the control that is tested.
func (st stage) run(ctx context.Context, log *slog.Logger, l net.Listener, to string) error {
	c, err := dialer(TestName).DialContext(ctx, "tcp4", to)
	if err != nil {
		return fmt.Errorf("%s: connect: %w", st.name, err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		return fmt.Errorf("%s: accept: %w", st.name, err)
	}
	defer s.Close()
	limit := time.Duration(float64(st.bytes) / st.minRate * float64(time.Second))
	got, err := transfer(ctx, c.(*net.TCPConn), s.(*net.TCPConn), st.bytes, limit)
	if err == nil {
		err = st.judge(got)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", st.name, err)
	}
	log.Info("tried congestion control", "where", st.name, "bytes", st.bytes, "took", got.took,
		"packets", got.packets, "retransmitted", got.retrans)
	return nil
}

// dialer makes connections with a congestion control.
func dialer(name string) *net.Dialer {
	return &net.Dialer{Timeout: stallTime, Control: func(_, _ string, c syscall.RawConn) error {
		return onDescriptor(c, func(fd int) error {
			return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
		})
	}}
}

// bufferedListener has a receive buffer for a window of at least n bytes from the start.
// A buffer that the kernel adjusts may stay as small as what the link holds, and then
// even a control that does not respond to loss loses little.
func bufferedListener(n int) *net.ListenConfig {
	return &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return onDescriptor(c, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 2*n)
		})
	}}
}

func (st stage) judge(got delivery) error {
	if got.packets > 0 && float64(got.retrans) > st.maxRetrans*float64(got.packets) {
		return fmt.Errorf("%d of %d packets were retransmitted, more than %.0f %%: it does not respond to loss",
			got.retrans, got.packets, 100*st.maxRetrans)
	}
	return nil
}
