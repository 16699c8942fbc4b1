// Command server is the program of the pods that the kubelet runs. It answers at port 80:
//
//	/                 the client's address
//	/probes           how many probes of the kubelet it has answered
//	/bytes?n=N        N bytes
//	/control?to=ADDR  the congestion control of a connection that it opens to ADDR
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	var probes atomic.Int64
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.UserAgent(), "kube-probe/") {
			probes.Add(1)
		}
		io.WriteString(w, r.RemoteAddr)
	})
	http.HandleFunc("/probes", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, probes.Load()) })
	http.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.FormValue("n"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Write(make([]byte, n))
	})
	http.HandleFunc("/control", func(w http.ResponseWriter, r *http.Request) {
		name, err := control(r.FormValue("to"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		io.WriteString(w, name)
	})
	log.Fatal(http.ListenAndServe(":80", nil))
}

// control is the congestion control of a new connection to an address.
func control(to string) (name string, err error) {
	c, err := net.DialTimeout("tcp", to, 3*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return "", err
	}
	if failed := raw.Control(func(fd uintptr) { name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) }); failed != nil {
		return "", failed
	}
	return strings.TrimRight(name, "\x00"), err
}
