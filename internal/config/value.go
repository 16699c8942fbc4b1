package config

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/pod"
	"github.com/tcpilot/tcpilot/internal/policy"
	"github.com/tcpilot/tcpilot/internal/tcp"
	"github.com/tcpilot/tcpilot/internal/yamlfile"
)

func notOneOf(s string, choices []string) error {
	return bad(chooseFrom(yamlfile.Nearest(s, choices), choices), "%q is not one of the choices", s)
}

// chooseFrom says what to write: near, unless it is empty, or one of choices.
func chooseFrom(near string, choices []string) string {
	fix := "write " + strings.Join(choices, ", ")
	if i := strings.LastIndex(fix, ", "); i > 0 {
		fix = fix[:i] + " or" + fix[i+1:]
	}
	if near != "" {
		fix = fmt.Sprintf("did you mean %q? Otherwise %s", near, fix)
	}
	return fix
}

// ParseBool reads true or false.
func ParseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, bad("write true or false", "%q is neither true nor false", s)
	}
	return s == "true", nil
}

func parseInt(s string, tag reflect.StructTag) (int, error) {
	v, err := ParseCount(s, "a whole number")
	if err != nil {
		return 0, err
	}
	low, _ := strconv.ParseUint(tag.Get("min"), 10, 31)
	high, _ := strconv.ParseUint(tag.Get("max"), 10, 31)
	if v < low || v > high {
		return 0, bad(fmt.Sprintf("write %d to %d", low, high), "%s is out of range", s)
	}
	return int(v), nil
}

func parseSizeIn(s string, tag reflect.StructTag) (uint64, error) {
	v, err := ParseSize(s)
	if err != nil {
		return 0, err
	}
	low, _ := ParseSize(tag.Get("min"))
	high, _ := ParseSize(tag.Get("max"))
	if v < low || v > high {
		return 0, bad(fmt.Sprintf("write %s to %s", tag.Get("min"), tag.Get("max")), "%s is out of range", s)
	}
	return v, nil
}

func parseRateIn(s string, tag reflect.StructTag) (rate, error) {
	v, err := ParseRate(s)
	if err != nil {
		return 0, err
	}
	low, _ := ParseRate(tag.Get("min"))
	high, _ := ParseRate(tag.Get("max"))
	if v < low || v > high {
		return 0, bad(fmt.Sprintf("write %s to %s", tag.Get("min"), tag.Get("max")), "%s is out of range", s)
	}
	return rate(v), nil
}

func parseShareIn(s string, tag reflect.StructTag) (float64, error) {
	v, err := ParseShare(s)
	if err != nil {
		return 0, err
	}
	low, _ := strconv.ParseFloat(tag.Get("min"), 64)
	high, _ := strconv.ParseFloat(tag.Get("max"), 64)
	if v < low || v > high {
		return 0, bad(fmt.Sprintf("write %g%% to %g%%", low*100, high*100), "%s is out of range", s)
	}
	return v, nil
}

func parseDurationIn(s string, tag reflect.StructTag) (time.Duration, error) {
	v, err := ParseDuration(s)
	if err != nil {
		return 0, err
	}
	off, low, high := tag.Get("off"), tagDuration(tag, "min"), tagDuration(tag, "max")
	if (v < low || v > high) && !(v == 0 && off != "") {
		fix := fmt.Sprintf("write %s to %s", shortDuration(low), shortDuration(high))
		if off != "" {
			fix += ", or " + off + " for off"
		}
		return 0, bad(fix, "%s is out of range", s)
	}
	return v, nil
}

func tagDuration(tag reflect.StructTag, key string) time.Duration {
	v, _ := time.ParseDuration(tag.Get(key))
	return v
}

var modeForm = regexp.MustCompile(`^0o?[0-7]{3}$`)

func parseMode(s string) (fs.FileMode, error) {
	if !modeForm.MatchString(s) {
		return 0, bad("write four octal digits such as 0660", "%q is not a file mode", s)
	}
	v, _ := strconv.ParseUint(strings.TrimPrefix(s[1:], "o"), 8, 32)
	if v&^0o666 != 0 || v&0o200 == 0 {
		return 0, bad("write 0200 to 0666 without execute bits, with write for the owner, such as 0660", "%s is not a mode for a socket", s)
	}
	return fs.FileMode(v), nil
}

// parsePrefix reads a prefix, or an address as a prefix of its full length.
func parsePrefix(s string) (netip.Prefix, error) {
	const hint = "write a prefix such as 10.0.0.0/8 or 2001:db8::/32, or an address"
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return p, bad(hint, "%q is not a prefix (CIDR)", s)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	switch {
	case p.Addr().Is4In6():
		return netip.Prefix{}, bad("write it as IPv4; it matches v4-mapped addresses too", "%s is a v4-mapped prefix", s)
	case p != p.Masked():
		return netip.Prefix{}, bad(fmt.Sprintf("write %s, or %s/%d for the one address", p.Masked(), p.Addr(), p.Addr().BitLen()),
			"%s has bits set beyond its prefix length", s)
	}
	return p, nil
}

// parsePorts reads a port, or a range of them.
func parsePorts(s string) (policy.PortRange, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 64)
	b, err2 := strconv.ParseUint(last, 10, 64)
	switch {
	case err1 != nil || err2 != nil:
		return policy.PortRange{}, bad("write a port such as 443 or a range such as 8000-8100", "%q is not a port", s)
	case a < 1 || b < 1 || a > 65535 || b > 65535:
		return policy.PortRange{}, bad("write ports of 1 to 65535", "%s is out of range", s)
	case a > b:
		return policy.PortRange{}, bad(fmt.Sprintf("write %d-%d", b, a), "%s is an empty range", s)
	}
	return policy.PortRange{First: uint16(a), Last: uint16(b)}, nil
}

var ccForm = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// ParseCC reads the name of a congestion control. A name that begins as those of tcpilot's own do has
// to be one of them; any other name that the kernel accepts is valid.
func ParseCC(s string) (tcp.CC, error) {
	cc, ok := tcp.ParseCC(s)
	if !ok || !ccForm.MatchString(s) {
		return tcp.CC{}, bad("write a name of at most 15 characters, as in net.ipv4.tcp_available_congestion_control",
			"%q cannot be a congestion control", s)
	}
	if congestion.HasOwnName(cc) && !congestion.IsOwn(cc) {
		return tcp.CC{}, notOurs(s)
	}
	return cc, nil
}

var (
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	netnsForm = regexp.MustCompile(`^[A-Za-z0-9._:@-]+$`)
	groupForm = regexp.MustCompile(`^[A-Za-z0-9_.-]*$`)
)

// checkText checks text against the form that the tag "is" names.
func checkText(s, form string) error {
	switch form {
	case "name":
		if !nameForm.MatchString(s) {
			return bad("write 1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first", "%q cannot be a name", s)
		}
	case "path":
		if s != "" && (!path.IsAbs(s) || path.Clean(s) != s) {
			return bad("write an absolute path without . or .. or a trailing slash", "%q is not a clean absolute path", s)
		}
	case "cgroup":
		if !path.IsAbs(s) || path.Clean(s) != s {
			return bad("write a path below the cgroup2 hierarchy's root, such as /system.slice/nginx.service", "%q is not a cgroup path", s)
		}
		if _, err := path.Match(s, ""); err != nil && strings.ContainsAny(s, "*?[") {
			return bad("close the [, and double a \\ that is part of a name", "%q is not a pattern of cgroup paths", s)
		}
	case "netns":
		if !netnsForm.MatchString(s) && (!path.IsAbs(s) || path.Clean(s) != s) {
			return bad("write a name as in /run/netns, an absolute path, or a cookie (a number)", "%q is not a network namespace", s)
		}
	case "podglob":
		if strings.Contains(s, "/") {
			return bad("write the namespace and the name as two keys: {namespace: shop, name: web-*}", "%q has a /, which no name of a pod has", s)
		}
		return checkGlob(s)
	case "group":
		if !groupForm.MatchString(s) {
			return bad("write a group's name or number", "%q is not a group", s)
		}
	case "device":
		if err := pod.CheckInterface(s); err != nil {
			return bad("write the name of a network device, such as eth0", "%v", err)
		}
	case "listen":
		return checkListen(s)
	}
	return nil
}

func checkGlob(s string) error {
	if err := pod.CheckGlob(s); err != nil {
		return bad(`write a pattern such as web-* or [a-c]?; a \ before *, ? or [ makes it an ordinary character`, "%v", err)
	}
	return nil
}

func checkListen(s string) error {
	const hint = "write address:port such as 127.0.0.1:9732, or \"\" for off"
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return bad(hint, "%q is not address:port", s)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return bad(hint, "%q has no usable port", s)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		return bad(hint, "%q does not begin with an IP address", s)
	}
	return nil
}
