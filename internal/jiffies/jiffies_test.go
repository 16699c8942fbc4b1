package jiffies

import "testing"

// CONFIG_HZ is 100, 250, 300 or 1000.
func TestMicros(t *testing.T) {
	switch us := Micros(); us {
	case 10000, 4000, 3333, 1000:
	default:
		t.Errorf("a jiffy of %d us", us)
	}
}
