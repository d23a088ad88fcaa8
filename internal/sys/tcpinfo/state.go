package tcpinfo

import "fmt"

// State is the state of a connection (RFC 9293, section 3.3.2), in the
// kernel's numbering.
type State uint8

// The states.
const (
	Established State = 1 + iota
	SynSent
	SynReceived
	FinWait1
	FinWait2
	TimeWait
	Closed
	CloseWait
	LastAck
	Listen
	Closing
)

var stateNames = [...]string{
	Established: "established", SynSent: "syn-sent", SynReceived: "syn-received",
	FinWait1: "fin-wait-1", FinWait2: "fin-wait-2", TimeWait: "time-wait",
	Closed: "closed", CloseWait: "close-wait", LastAck: "last-ack",
	Listen: "listen", Closing: "closing",
}

// String is the state's name as ss prints it.
func (s State) String() string {
	if s == 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("state-%d", uint8(s))
	}
	return stateNames[s]
}

// CAState is the state of the sender's loss recovery.
type CAState uint8

// The states of loss recovery.
const (
	CAOpen     CAState = iota // nothing suspicious
	CADisorder                // duplicate acknowledgements or SACKs, not yet considered loss
	CACWR                     // the window is being reduced after an ECN mark or a local drop
	CARecovery                // fast recovery
	CALoss                    // after a retransmission timeout
)

var caStateNames = [...]string{"open", "disorder", "cwr", "recovery", "loss"}

// String is the state's name.
func (s CAState) String() string {
	if int(s) >= len(caStateNames) {
		return fmt.Sprintf("ca-state-%d", uint8(s))
	}
	return caStateNames[s]
}

// Options are the TCP options negotiated by both ends.
type Options uint8

// The bits of Options.
const (
	OptTimestamps Options = 1 << iota // RFC 7323
	OptSACK                           // RFC 2018
	OptWScale                         // RFC 7323
	OptECN                            // RFC 3168, negotiated
	OptECNSeen                        // a packet with an ECN codepoint came in
	OptSynData                        // data in the SYN was acknowledged (RFC 7413)
)
