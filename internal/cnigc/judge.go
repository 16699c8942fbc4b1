package cnigc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/netns"
	"github.com/tcpilot/tcpilot/internal/podrecord"
	"github.com/tcpilot/tcpilot/internal/rtnetlink"
)

// verdict says whether an attachment is gone. If it is not, and why is set, that could not be found out.
type verdict struct {
	gone bool
	why  string
}

func unclear(format string, a ...any) verdict { return verdict{why: fmt.Sprintf(format, a...)} }

// judge says whether an attachment is gone. That is certain if its path does not lead to its network namespace any more, and
// neither a process nor a mount nor the host's end of its pair shows that the namespace still exists.
func (c *collection) judge(a *attachment) verdict {
	v := byPath(a)
	if !v.gone {
		return v
	}
	if age := podrecord.Age(&a.Pod); age < c.OlderThan {
		return unclear("%s, but it was added only %v ago", v.why, age.Round(time.Second))
	}
	if path := c.lives(a); path != "" {
		return unclear("%s, but the namespace exists: %s", v.why, path)
	}
	if device := c.hostEnd(a); device != "" {
		return unclear("%s, but the host's end of its pair exists: %s", v.why, device)
	}
	return v
}

// byPath judges by the path of the network namespace alone. Without a cookie, a path that leads to any namespace counts.
func byPath(a *attachment) verdict {
	if a.NetNS == "" {
		return unclear("the path of its network namespace is not known")
	}
	cookie, err := netns.Cookie(a.NetNS)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isDir(parent(a.NetNS)):
		return unclear("the directory of its network namespace %s does not exist here: is this the file system of the container runtime?", a.NetNS)
	case errors.Is(err, fs.ErrNotExist):
		return verdict{true, fmt.Sprintf("its network namespace %s does not exist", a.NetNS)}
	case err != nil:
		// An empty file, too: without the mounts of the container runtime, namespaces that exist look like that.
		return unclear("%v", err)
	case a.Cookie != 0 && cookie != a.Cookie:
		return verdict{true, fmt.Sprintf("%s is another network namespace (cookie %d, not %d)", a.NetNS, cookie, a.Cookie)}
	}
	return verdict{}
}

// parent is the directory that exists whether or not the namespace does: if it does not, this process may see another file
// system than the container runtime.
func parent(path string) string {
	if strings.HasPrefix(path, "/proc/") {
		return "/proc/self"
	}
	return filepath.Dir(path)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// lives is where the network namespace of an attachment was found by its cookie; empty if nowhere.
func (c *collection) lives(a *attachment) string {
	for _, ns := range c.namespaces {
		if ns.Cookie == a.Cookie && a.Cookie != 0 && !c.another(func(b *attachment) bool { return b.Cookie == a.Cookie && b.Container != a.Container }) {
			return ns.Path
		}
	}
	return ""
}

// hostEnd is the name of the host's end of the attachment's pair, if that exists in the network namespace of this process; otherwise
// empty. It ends with the pod's end.
func (c *collection) hostEnd(a *attachment) string {
	if a.HostIndex == 0 || c.another(func(b *attachment) bool { return b.HostIndex == a.HostIndex }) {
		return ""
	}
	l, err := rtnetlink.LinkByIndex(a.HostIndex)
	if errors.Is(err, unix.ENODEV) || err == nil && (l.Below != a.Index || l.BelowNS == rtnetlink.SameNS || l.Kind != string(a.Device)) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	return l.Name
}

// another reports whether what an attachment has is that of another one, whose network namespace exists: after a restart of the host,
// cookies and indexes of devices begin anew.
func (c *collection) another(has func(*attachment) bool) bool {
	return slices.ContainsFunc(c.attachments, func(b *attachment) bool { return has(b) && byPath(b) == verdict{} })
}

// again judges an attachment that was gone once more: by its record, which may be a new one, and by the path.
func (c *collection) again(a *attachment) verdict {
	if now, err := c.Records.Get(a.Key()); err == nil && (now.Cookie != a.Cookie || !now.Added.Equal(a.Added)) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return verdict{}
	}
	return byPath(a)
}
