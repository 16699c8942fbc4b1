package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"github.com/tcpilot/tcpilot/internal/lab/topology"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoNetem says that this kernel cannot delay packets with netem.
var ErrNoNetem = errors.New("this kernel has no netem (CONFIG_NET_SCH_NETEM)")

// HasNetem is ErrNoNetem, another reason why netem cannot be used, or nil.
func HasNetem() error { return hasNetem() }

// hasNetem tries it on the loopback device of a namespace that ends with the
// thread.
var hasNetem = sync.OnceValue(func() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- tryNetem()
	}()
	return <-result
})

func tryNetem() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	h, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	root := netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	err = h.QdiscAdd(netlink.NewNetem(root, netlink.NetemQdiscAttrs{Limit: 1}))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoNetem
	}
	return err
}

// netem delays and limits what leaves a device: netem (1:) for the delay, below
// it tbf (2:) for the rate, red (3:) for marks, and a fifo (4: by bytes, 5: by
// packets) for the queue.
type netem struct{ end *topology.End }

const (
	// netemRate is what netem and tbf are given for no limit, in bit/s: with a rate
	// netem keeps the order of packets whatever their jitter (netem_enqueue), and
	// orphans them, so that the sender's small-queue limit does not see the link.
	netemRate = 100e9
	// netemLimit is the packets that may be delayed at a time.
	netemLimit = 1_000_000
)

// set replaces what each qdisc does; it keeps the packets that wait, unless the
// limit changes between bytes and packets.
func (n *netem) set(s Spec) error {
	return n.tc(s.netem(n.end.Device))
}

// netem is the Spec in the words of tc -batch.
func (s Spec) netem(device string) string {
	delay := fmt.Sprintf("delay %dns", s.Delay.Nanoseconds())
	if s.Jitter > 0 {
		delay += fmt.Sprintf(" %dns", s.Jitter.Nanoseconds())
	}
	if s.Reorder > 0 {
		delay += fmt.Sprintf(" reorder %.6f%%", 100*s.Reorder)
	}
	rate, room := s.Rate, s.Room()
	if rate == 0 {
		rate, room = netemRate, Queue{Bytes: 1 << 28}
	}
	limit := room.Bytes
	fifo := fmt.Sprintf("handle 4: bfifo limit %d", room.Bytes)
	if room.Packets > 0 {
		// What red counts in bytes must not limit.
		limit = 1 << 28
		fifo = fmt.Sprintf("handle 5: pfifo limit %d", room.Packets)
	}
	threshold := s.ECN
	if threshold == 0 {
		threshold = limit
	}
	var b strings.Builder
	line := func(format string, args ...any) {
		fmt.Fprintf(&b, "qdisc replace dev %s %s\n", device, fmt.Sprintf(format, args...))
	}
	line("root handle 1: netem limit %d %s rate %dbit", netemLimit, delay, uint64(netemRate))
	// The bucket lets a millisecond's worth pass at once, for the timer.
	line("parent 1:1 handle 2: tbf rate %dbit burst %d limit %d", rate, max(rate/8/1000, 4096), limit)
	// Between two thresholds a byte apart red marks by the depth alone; what cannot
	// be marked it leaves be (nodrop).
	line("parent 2:1 handle 3: red limit %d min %d max %d avpkt 1500 burst %d bandwidth %dbit probability 1 ecn nodrop",
		limit, threshold, threshold+1, threshold/1500+1, rate)
	line("parent 3:1 %s", fifo)
	return b.String()
}

// tc runs commands.
func (n *netem) tc(commands string) error {
	var out strings.Builder
	cmd := exec.Command("tc", "-batch", "-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(commands), &out, &out
	if err := n.end.Host.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run tc: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

// qdisc is what tc prints of one.
type qdisc struct {
	Kind   string `json:"kind"`
	Drops  uint64 `json:"drops"`
	Marked uint64 `json:"marked"`
}

// count adds what the qdiscs dropped and marked.
func (n *netem) count(c *Counters) error {
	out, err := n.end.Host.Run("tc", "-s", "-j", "qdisc", "show", "dev", n.end.Device)
	if err != nil {
		return err
	}
	var all []qdisc
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return fmt.Errorf("read qdiscs: %w", err)
	}
	var drops uint64
	for _, q := range all {
		switch q.Kind {
		case "netem":
			drops = q.Drops // those of tbf too
		case "tbf":
			c.Overflowed += q.Drops
			drops -= min(drops, q.Drops)
		case "red":
			c.Marked += q.Marked
		}
	}
	c.Failed += drops
	return nil
}

// close takes all of them off; what waits is dropped.
func (n *netem) close() error {
	return n.tc(fmt.Sprintf("qdisc del dev %s root\n", n.end.Device))
}
