package datapath

import "github.com/tcpilot/tcpilot/internal/tcp"

// Socket option levels and numbers (include/uapi/linux/{in,in6,tcp,bpf}.h and
// asm-generic/socket.h).
const (
	solSocket = 1
	solIP     = 0
	solTCP    = 6
	solIPv6   = 41
)

// options says how the kernel is told each field. A field that is missing here
// answers a request op instead.
var options = map[tcp.Field]abiSockOption{
	tcp.InitCwnd:           {Level: solTCP, Name: 1001}, // TCP_BPF_IW
	tcp.CwndClamp:          {Level: solTCP, Name: 1002}, // TCP_BPF_SNDCWND_CLAMP
	tcp.DelackMax:          {Level: solTCP, Name: 1003}, // TCP_BPF_DELACK_MAX
	tcp.RTOMin:             {Level: solTCP, Name: 1004}, // TCP_BPF_RTO_MIN
	tcp.RTOMax:             {Level: solTCP, Name: 44},   // TCP_RTO_MAX_MS
	tcp.Sndbuf:             {Level: solSocket, Name: 7},
	tcp.Rcvbuf:             {Level: solSocket, Name: 8},
	tcp.KeepAlive:          {Level: solSocket, Name: 9},
	tcp.Priority:           {Level: solSocket, Name: 12},
	tcp.RcvLowat:           {Level: solSocket, Name: 18},
	tcp.Mark:               {Level: solSocket, Name: 36},
	tcp.MaxPacingRate:      {Level: solSocket, Name: 47},
	tcp.TxRehash:           {Level: solSocket, Name: 74},
	tcp.NoDelay:            {Level: solTCP, Name: 1},
	tcp.MaxSeg:             {Level: solTCP, Name: 2},
	tcp.KeepIdle:           {Level: solTCP, Name: 4},
	tcp.KeepInterval:       {Level: solTCP, Name: 5},
	tcp.KeepCount:          {Level: solTCP, Name: 6},
	tcp.SynCount:           {Level: solTCP, Name: 7},
	tcp.WindowClamp:        {Level: solTCP, Name: 10},
	tcp.ThinLinearTimeouts: {Level: solTCP, Name: 16},
	tcp.UserTimeout:        {Level: solTCP, Name: 18},
	tcp.NotsentLowat:       {Level: solTCP, Name: 25},
	tcp.SaveSyn:            {Level: solTCP, Name: 27},
	tcp.TOS:                {Level: solIP, Name: 1},
	tcp.TClass:             {Level: solIPv6, Name: 67},
}

// requestOps names the sock_ops ops (BPF_SOCK_OPS_*) that answer a field.
var requestOps = map[tcp.Field]uint32{
	tcp.SynRTO:    opTimeoutInit,
	tcp.SynAckRTO: opTimeoutInit,
	tcp.InitRwnd:  opRwndInit,
	tcp.ECN:       opNeedsECN,
	tcp.BaseRTT:   opBaseRTT,
}

const (
	opTimeoutInit = 1
	opRwndInit    = 2
	opNeedsECN    = 6
	opBaseRTT     = 7
	opRTO         = 8
	opRetransmit  = 9
	opState       = 10
)

// optionTable is the programs' constant table, indexed by field.
func optionTable() (t [tcp.NumFields]abiSockOption) {
	for f, o := range options {
		o.Valid = 1
		if tcp.Fields[f].When == tcp.AtEstablished {
			o.Established = 1
		}
		t[f] = o
	}
	return t
}

// requestMask has a bit for every sock_ops op that answers a field of mask
// (bit 1<<f per field f).
func requestMask(mask uint64) (ops uint32) {
	for f, op := range requestOps {
		if mask&(1<<f) != 0 {
			ops |= 1 << op
		}
	}
	return ops
}
