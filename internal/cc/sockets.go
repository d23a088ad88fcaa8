package cc

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of the kernel's sock_diag interface, see sock_diag(7).
const (
	sockDiagByFamily   = 20
	inetDiagCongestion = 4  // INET_DIAG_CONG
	inetDiagRequestLen = 56 // struct inet_diag_req_v2
	inetDiagMessageLen = 72 // struct inet_diag_msg
	tcpListen          = 10 // TCP_LISTEN
	allTCPStates       = 0xfff
)

// diagRequest asks for all TCP sockets of a family, other than listening ones,
// with their congestion control.
type diagRequest uint8

func (family diagRequest) Len() int { return inetDiagRequestLen }

func (family diagRequest) Serialize() []byte {
	b := make([]byte, inetDiagRequestLen)
	b[0] = byte(family)
	b[1] = unix.IPPROTO_TCP
	b[2] = 1 << (inetDiagCongestion - 1)
	binary.NativeEndian.PutUint32(b[4:], allTCPStates&^(1<<tcpListen))
	return b
}

// SocketCounts is how many TCP connections of the calling thread's network
// namespace have each congestion control.
func SocketCounts() (map[string]int, error) {
	counts := map[string]int{}
	for _, family := range []diagRequest{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		request.AddData(family)
		answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			return nil, fmt.Errorf("cannot list TCP connections: %w", err)
		}
		for _, answer := range answers {
			if name := congestionOf(answer); name != "" {
				counts[name]++
			}
		}
	}
	return counts, nil
}

// congestionOf finds the congestion control in the description of a socket,
// empty if it has none, as in TIME-WAIT.
func congestionOf(answer []byte) string {
	if len(answer) < inetDiagMessageLen {
		return ""
	}
	for b := answer[inetDiagMessageLen:]; len(b) >= unix.SizeofRtAttr; {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return ""
		}
		if binary.NativeEndian.Uint16(b[2:]) == inetDiagCongestion {
			return unix.ByteSliceToString(b[unix.SizeofRtAttr:length])
		}
		b = b[min((length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
	return ""
}
