package kubeapitest

import (
	"io"
	"net"
	"net/url"
	"testing"
)

// Forward makes a server reachable at a listener, which may be in another network namespace, and returns its URL there.
// It ends with the test.
func Forward(t testing.TB, l net.Listener, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", u.Host)
			if err != nil {
				from.Close()
				continue
			}
			go func() { io.Copy(to, from); to.Close() }()
			go func() { io.Copy(from, to); from.Close() }()
		}
	}()
	return "https://" + l.Addr().String()
}
