package host

import "testing"

func TestNetNSInode(t *testing.T) {
	if got, ok := netNSInode("net:[4026531840]"); !ok || got != 4026531840 {
		t.Errorf("%d, %v", got, ok)
	}
	for _, bad := range []string{"", "/", "mnt:[1]", "net:[]", "net:[1", "net:[-1]", "net:[1]x"} {
		if got, ok := netNSInode(bad); ok {
			t.Errorf("%q gives %d", bad, got)
		}
	}
}
