package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// caller is the process at the other end of a connection, by the credentials that the kernel
// recorded when the connection was made.
type caller struct {
	pid      int32
	uid      uint32
	groups   []uint32 // supplementary ones, and the primary one
	unknown  error    // why the other fields are not known
	readOnly bool     // connected to the socket for reading
}

type callerKey struct{}

// withCaller adds the caller of a connection to the context of its requests.
func withCaller(ctx context.Context, c net.Conn, readOnly bool) context.Context {
	who := peerOf(c)
	who.readOnly = readOnly
	return context.WithValue(ctx, callerKey{}, who)
}

func callerOf(r *http.Request) caller {
	who, known := r.Context().Value(callerKey{}).(caller)
	if !known {
		who.unknown = fmt.Errorf("no connection")
	}
	return who
}

func peerOf(c net.Conn) (who caller) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return caller{unknown: fmt.Errorf("%T has no credentials", c)}
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return caller{unknown: err}
	}
	if err := raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			who.unknown = fmt.Errorf("read peer credentials: %w", err)
			return
		}
		// Without the supplementary groups, as before Linux 4.13, the primary one counts.
		who.pid, who.uid, who.groups = cred.Pid, cred.Uid, append(peerGroups(fd), cred.Gid)
	}); err != nil {
		who.unknown = err
	}
	return who
}

// maxGroups is NGROUPS_MAX (include/uapi/linux/limits.h).
const maxGroups = 65536

func peerGroups(fd uintptr) []uint32 {
	for n := 32; n <= maxGroups; n *= 8 {
		list := make([]uint32, n)
		size := uint32(4 * n)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return list[:size/4]
		case unix.ERANGE:
			continue
		}
		break
	}
	return nil
}

// mayChange returns why the caller must not change anything, nil if it may: root,
// the daemon's own user, and members of the administrators' group.
func (s *Server) mayChange(who caller) *Error {
	switch {
	case who.readOnly:
		return (&Error{Code: http.StatusForbidden, Message: "the socket is for reading only"}).
			WithHint("use the administrators' socket: as root, without --socket")
	case who.unknown != nil:
		return &Error{Code: http.StatusForbidden, Message: "the caller is not known: " + who.unknown.Error()}
	case who.uid == 0 || who.uid == uint32(os.Getuid()):
		return nil
	case s.admins >= 0 && slices.Contains(who.groups, uint32(s.admins)):
		return nil
	}
	return (&Error{Code: http.StatusForbidden, Message: fmt.Sprintf("uid %d may read but not change anything", who.uid)}).
		WithHint("be root (sudo), or a member of the group that socket.admins names in the configuration")
}

// change refuses callers that may not change anything, and logs each request with its caller.
func (s *Server) change(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who := callerOf(r)
		about := []any{"request", r.Method + " " + r.URL.Path, "pid", who.pid, "uid", who.uid}
		if e := s.mayChange(who); e != nil {
			s.log.Warn("API request refused", append(about, "error", e.Message)...)
			_ = http.NewResponseController(w).SetWriteDeadline(s.now().Add(askTimeout))
			writeError(w, e)
			return
		}
		s.log.Info("API request", about...)
		next(w, r)
	}
}
