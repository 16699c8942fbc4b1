package rtnetlink_test

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestRootSetUp(t *testing.T) {
	testenv.Root(t)
	err := netns.InNew(func() error {
		for _, want := range []net.Flags{0, net.FlagUp, net.FlagUp} { // the second time it is up already
			lo, err := net.InterfaceByName("lo")
			if err != nil {
				return err
			}
			if got := lo.Flags & net.FlagUp; got != want {
				t.Errorf("lo has the flag %q, want %q", got, want)
			}
			if err := rtnetlink.SetUp("lo"); err != nil {
				return err
			}
		}
		if err := rtnetlink.SetUp("absent"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("set a device up that does not exist: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
