package datapath

import (
	"golang.org/x/sys/unix"

	"github.com/tcpilot/tcpilot/internal/tcp"
)

// options are the socket options by which fields are set. Fields that are missing here are
// answers to request ops instead.
var options = map[tcp.Field]abiSockOption{
	tcp.InitCwnd:           {Level: unix.SOL_TCP, Name: unix.TCP_BPF_IW},
	tcp.CwndClamp:          {Level: unix.SOL_TCP, Name: unix.TCP_BPF_SNDCWND_CLAMP},
	tcp.DelackMax:          {Level: unix.SOL_TCP, Name: unix.TCP_BPF_DELACK_MAX},
	tcp.RTOMin:             {Level: unix.SOL_TCP, Name: unix.TCP_BPF_RTO_MIN},
	tcp.RTOMax:             {Level: unix.SOL_TCP, Name: unix.TCP_RTO_MAX_MS},
	tcp.Sndbuf:             {Level: unix.SOL_SOCKET, Name: unix.SO_SNDBUF},
	tcp.Rcvbuf:             {Level: unix.SOL_SOCKET, Name: unix.SO_RCVBUF},
	tcp.KeepAlive:          {Level: unix.SOL_SOCKET, Name: unix.SO_KEEPALIVE},
	tcp.Priority:           {Level: unix.SOL_SOCKET, Name: unix.SO_PRIORITY},
	tcp.RcvLowat:           {Level: unix.SOL_SOCKET, Name: unix.SO_RCVLOWAT},
	tcp.Mark:               {Level: unix.SOL_SOCKET, Name: unix.SO_MARK},
	tcp.MaxPacingRate:      {Level: unix.SOL_SOCKET, Name: unix.SO_MAX_PACING_RATE},
	tcp.TxRehash:           {Level: unix.SOL_SOCKET, Name: unix.SO_TXREHASH},
	tcp.NoDelay:            {Level: unix.SOL_TCP, Name: unix.TCP_NODELAY},
	tcp.MaxSeg:             {Level: unix.SOL_TCP, Name: unix.TCP_MAXSEG},
	tcp.KeepIdle:           {Level: unix.SOL_TCP, Name: unix.TCP_KEEPIDLE},
	tcp.KeepInterval:       {Level: unix.SOL_TCP, Name: unix.TCP_KEEPINTVL},
	tcp.KeepCount:          {Level: unix.SOL_TCP, Name: unix.TCP_KEEPCNT},
	tcp.SynCount:           {Level: unix.SOL_TCP, Name: unix.TCP_SYNCNT},
	tcp.WindowClamp:        {Level: unix.SOL_TCP, Name: unix.TCP_WINDOW_CLAMP},
	tcp.ThinLinearTimeouts: {Level: unix.SOL_TCP, Name: unix.TCP_THIN_LINEAR_TIMEOUTS},
	tcp.UserTimeout:        {Level: unix.SOL_TCP, Name: unix.TCP_USER_TIMEOUT},
	tcp.NotsentLowat:       {Level: unix.SOL_TCP, Name: unix.TCP_NOTSENT_LOWAT},
	tcp.SaveSyn:            {Level: unix.SOL_TCP, Name: unix.TCP_SAVE_SYN},
	tcp.TOS:                {Level: unix.SOL_IP, Name: unix.IP_TOS},
	tcp.TClass:             {Level: unix.SOL_IPV6, Name: unix.IPV6_TCLASS},
}

// requestOps names the sock_ops ops that answer a field.
var requestOps = map[tcp.Field]uint32{
	tcp.SynRTO:    unix.BPF_SOCK_OPS_TIMEOUT_INIT,
	tcp.SynAckRTO: unix.BPF_SOCK_OPS_TIMEOUT_INIT,
	tcp.InitRwnd:  unix.BPF_SOCK_OPS_RWND_INIT,
	tcp.ECN:       unix.BPF_SOCK_OPS_NEEDS_ECN,
	tcp.BaseRTT:   unix.BPF_SOCK_OPS_BASE_RTT,
	// The kernel asks only sockets with a flag, which listeners get at this op (peer_listen.bpf.h).
	tcp.PeerOption: unix.BPF_SOCK_OPS_TCP_LISTEN_CB,
}

// optionTable is the programs' constant table, indexed by field.
func optionTable() (t [tcp.NumFields]abiSockOption) {
	for f, o := range options {
		o.Valid = 1
		t[f] = o
	}
	return t
}

// optionMasks are the fields that are set before the handshake, and after it (bit 1<<f per field f).
func optionMasks() (before, after uint64) {
	for f := range options {
		if tcp.Fields[f].When == tcp.AtEstablished {
			after |= 1 << f
		} else {
			before |= 1 << f
		}
	}
	return before, after
}

// Of bpf/include/abi.h: REQUEST_SYNACK, REQUEST_SYN and REQUEST_ADAPTED_SYNACK.
const (
	requestSynAck        = 1 << 31
	requestSyn           = 1 << 30
	requestAdaptedSynAck = 1 << 29
)

// requestMask has a bit for every sock_ops op that answers a field that some rule sets or adapts
// (bit 1<<f per field f), and others for timeouts whose answer needs a look-up: that of a SYN-ACK, and
// that of a SYN unless it is adapted. An adapted initial receive window is set when a connection begins.
func requestMask(set, adapted uint64) (ops uint32) {
	for f, op := range requestOps {
		if (set|adapted&^(1<<tcp.InitRwnd))&(1<<f) != 0 {
			ops |= 1 << op
		}
	}
	switch synAck := uint64(1) << tcp.SynAckRTO; {
	case set&synAck != 0:
		ops |= requestSynAck
	case adapted&synAck != 0:
		ops |= requestAdaptedSynAck
	}
	if set&(1<<tcp.SynRTO) != 0 {
		ops |= requestSyn
	}
	return ops
}
