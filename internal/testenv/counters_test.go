package testenv

import "testing"

func TestNetCounter(t *testing.T) {
	const text = "Ip: Forwarding OutRequests\nIp: 1 20\nTcp: MaxConn OutSegs\nTcp: -1 300\nUdp: OutDatagrams\nUdp:\n"
	for name, want := range map[string]int{"OutRequests": 20, "MaxConn": -1, "OutSegs": 300} {
		if n, err := NetCounter(text, name); n != want || err != nil {
			t.Errorf("%s is %d (%v), want %d", name, n, err, want)
		}
	}
	for _, name := range []string{"InSegs", "OutDatagrams"} { // no such counter; no value
		if n, err := NetCounter(text, name); err == nil {
			t.Errorf("%s is %d", name, n)
		}
	}
}
