package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// netNSInode parses the inode number in the name of a namespace: net:[4026531840].
func netNSInode(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, "net:[")
	digits, end := strings.CutSuffix(digits, "]")
	inode, err := strconv.ParseUint(digits, 10, 64)
	return inode, ok && end && err == nil
}

// readNetNS is the inode of the namespace that a link in /proc refers to.
func readNetNS(link string) (uint64, error) {
	name, err := os.Readlink(link)
	if err != nil {
		return 0, fmt.Errorf("read network namespace: %w", err)
	}
	inode, ok := netNSInode(name)
	if !ok {
		return 0, fmt.Errorf("read network namespace: %s is %q", link, name)
	}
	return inode, nil
}
