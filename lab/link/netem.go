package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/lab/topology"
)

// errNoNetem reports that this kernel cannot delay packets with netem.
var errNoNetem = errors.New("this kernel has no netem (CONFIG_NET_SCH_NETEM)")

// hasNetem returns nil if netem can be used, errNoNetem if the kernel has none, or
// another reason why it cannot be used.
var hasNetem = sync.OnceValue(func() error {
	err := tryQdisc(func(device int) netlink.Qdisc {
		return netlink.NewNetem(netemRoot(device), netlink.NetemQdiscAttrs{Limit: 1})
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return errNoNetem
	}
	return err
})

// HasQdisc returns nil if this kernel has the qdisc, such as fq, or else why it cannot
// be used.
func HasQdisc(kind string) error {
	if kind == "netem" {
		return hasNetem()
	}
	err := tryQdisc(func(device int) netlink.Qdisc {
		return &netlink.GenericQdisc{QdiscAttrs: netemRoot(device), QdiscType: kind}
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel has no %s (CONFIG_NET_SCH_%s)", kind, strings.ToUpper(kind))
	}
	return err
}

// tryQdisc tries a qdisc on the loopback device of a namespace that ends with the
// thread.
func tryQdisc(on func(device int) netlink.Qdisc) error {
	return netns.InNew(func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo: %w", err)
		}
		return h.QdiscAdd(on(lo.Attrs().Index))
	})
}

// netem delays and limits what leaves a device: netem (1:) for the delay, below
// it tbf (2:) for the rate, red (3:) for marks, and a fifo for the queue, by bytes
// (4:) or by packets (5:).
//
// UDP_SEGMENT makes aggregates even with offloads off. They pass the qdiscs whole and
// are split after them (validate_xmit_skb).
type netem struct {
	end  *topology.End
	tree netemTree // as last set
}

const (
	// unlimited is the rate in bit/s that netem and tbf get if there is none. With a
	// rate netem keeps the order of packets whatever their jitter (netem_enqueue). It
	// also orphans them, so that packets in the link do not count towards the sender's
	// TCP small queues limit.
	unlimited = 100_000_000_000
	// netemLimit is how many packets may be delayed at a time.
	netemLimit = 1_000_000
	// redLimit, in bytes, is never reached: the fifo below it limits the queue.
	redLimit = 1 << 28
)

// netemTree is the qdiscs as commands of tc -batch, from the root down.
type netemTree [4]string

// set replaces the qdiscs whose commands change. They keep the packets that wait, with
// two exceptions: red, which makes a new fifo, and the fifo if its kind changes.
func (n *netem) set(s Spec) (modelLinkConfig, error) {
	tree := s.netem(n.end.Device)
	var commands strings.Builder
	for i, command := range tree {
		if command != n.tree[i] || i == 3 && tree[2] != n.tree[2] {
			commands.WriteString(command)
		}
	}
	n.tree = netemTree{} // if tc fails, the state is unknown: the next set runs all commands
	if err := n.tc(commands.String()); err != nil {
		return modelLinkConfig{}, err
	}
	n.tree = tree
	return s.instant(), nil
}

// netem returns the commands that make the qdiscs of the Spec.
func (s Spec) netem(device string) (tree netemTree) {
	delay := "delay " + micros(s.Delay)
	if s.Jitter > 0 {
		delay += " " + micros(s.Jitter)
	}
	if s.Reorder > 0 {
		delay += fmt.Sprintf(" reorder %.6f%%", 100*s.Reorder)
	}
	rate, room, threshold := s.Rate, s.Room(), s.ECN
	if rate == 0 {
		rate, room.Bytes = unlimited, redLimit
	}
	if threshold == 0 {
		threshold = redLimit
	}
	fifo := fmt.Sprintf("handle 4: bfifo limit %d", room.Bytes)
	if room.Packets > 0 {
		fifo = fmt.Sprintf("handle 5: pfifo limit %d", room.Packets)
	}
	set := func(i int, format string, args ...any) {
		tree[i] = fmt.Sprintf("qdisc replace dev %s %s\n", device, fmt.Sprintf(format, args...))
	}
	set(0, "root handle 1: netem limit %d %s rate %dbit", netemLimit, delay, uint64(unlimited))
	set(1, "parent 1:1 handle 2: tbf rate %dbit burst %d limit %d", rate, bucket(rate), redLimit)
	// With thresholds one byte apart, red marks by the depth alone. It queues packets that
	// cannot be marked without a mark (nodrop).
	set(2, "parent 2:1 handle 3: red limit %d min %d max %d avpkt 1500 burst %d bandwidth 10gbit probability 1 ecn nodrop",
		redLimit, threshold, threshold+1, threshold/1500+1)
	set(3, "parent 3:1 %s", fifo)
	return tree
}

// bucket is the burst of tbf, in bytes: one frame, and a reserve that compensates for
// late timers. The reserve is three frames, but at most 10 ms at the rate, because all
// of it passes at once after each pause; at higher rates it is 2 ms at the rate.
func bucket(rate uint64) uint64 {
	return minFrame + max(rate/8/500, min(rate/8/100, 3*minFrame))
}

func micros(d time.Duration) string { return fmt.Sprintf("%.3fus", float64(d.Nanoseconds())/1000) }

// tc runs commands with tc -batch in the sender's namespace.
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

// qdisc is the part of tc's JSON output for one qdisc that count reads.
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
			drops = q.Drops // includes those of tbf
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

// close removes the qdiscs; packets that wait are dropped.
func (n *netem) close() error {
	h := n.end.Host.Netlink()
	err := h.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netemRoot(n.end.Index)})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		err = nil // it was never added
	}
	if err != nil {
		return fmt.Errorf("remove netem: %w", err)
	}
	return nil
}

func netemRoot(device int) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: device, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
}
