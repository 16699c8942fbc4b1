package sysctl

import (
	"os"
	"path/filepath"
	"strings"
)

// Root is where the kernel shows its sysctls.
const Root = "/proc/sys"

// Path is the file of a sysctl such as net.ipv4.tcp_congestion_control.
func Path(name string) string { return PathBelow(Root, name) }

// PathBelow is the file below another root. As in sysctl(8), parts are separated by dots, and
// a slash stands for a dot within a part (net.ipv4.conf.eth0/1.forwarding).
func PathBelow(root, name string) string {
	return filepath.Join(root, strings.NewReplacer(".", "/", "/", ".").Replace(name))
}

// Part is the name of a device as a part of a sysctl's name: see PathBelow.
func Part(device string) string { return strings.ReplaceAll(device, ".", "/") }

// Read returns the value of a sysctl, without the newline at its end.
func Read(name string) (string, error) {
	value, err := os.ReadFile(Path(name))
	return strings.TrimSuffix(string(value), "\n"), err
}

// Write sets the value of a sysctl.
func Write(name, value string) error { return os.WriteFile(Path(name), []byte(value), 0) }
