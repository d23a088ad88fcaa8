package pair

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"syscall"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/carry/pair/wire"
	"longhaul/internal/sys/tcpinfo"
)

// problemError is an error of a handshake with the problem that it shows.
type problemError struct {
	problem flow.PairProblem
	err     error
}

func (e *problemError) Error() string { return e.err.Error() }

func (e *problemError) Unwrap() error { return e.err }

func problemOf(err error) flow.PairProblem {
	var p *problemError
	if errors.As(err, &p) {
		return p.problem
	}
	return flow.PairPathDown
}

func problem(p flow.PairProblem, format string, args ...any) error {
	return &problemError{p, fmt.Errorf(format, args...)}
}

// worded is an error in other words.
type worded struct {
	text string
	err  error
}

func (w worded) Error() string { return w.text }

func (w worded) Unwrap() error { return w.err }

// silently is an error of which the text before it says all.
func silently(err error) error { return worded{"", err} }

// plain is an error without the operation and the addresses that Go puts before it.
func plain(err error) error {
	var op *net.OpError
	var call *os.SyscallError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return worded{"it has closed the connection", err}
	case errors.As(err, &call):
		return worded{call.Err.Error(), err}
	case errors.As(err, &op):
		return worded{op.Err.Error(), err}
	}
	return err
}

// broken is an error of a handshake with one that is known to speak the protocol: it was
// the path.
func broken(err error) error {
	if problemOf(err) == flow.PairUnpaired && (isSystem(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		return problem(flow.PairPathDown, "%w", err)
	}
	return err
}

// handshakeProblem finds the problem that an error after the connect shows.
func handshakeProblem(err error) error {
	alert, alerted := alertOf(err)
	switch {
	case errors.As(err, new(*problemError)):
		return err
	case alerted && certificateAlerts[alert]:
		return problem(flow.PairKeyUnknown, "the other relay does not know this host's key: %w", err)
	case alerted && alert == alertBusy:
		return problem(flow.PairBusy, "the other relay has too many connections in their handshakes")
	case alerted && alert == alertNoProtocol:
		return problem(flow.PairVersion, "the other relay speaks another version: %w", err)
	case errors.Is(err, syscall.ECONNRESET):
		return problem(flow.PairUnpaired, "the other host reset the connection in its handshake%w", silently(err))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem(flow.PairUnpaired, "the port takes connections, but its process does not answer, as one that is stopped or overloaded%w", silently(err))
	case errors.As(err, new(*net.OpError)), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.As(err, new(tls.RecordHeaderError)), errors.Is(err, wire.ErrMalformed), isSystem(err):
		return problem(flow.PairUnpaired, "the port answers, but no pair protocol: %w", plain(err))
	}
	return problem(flow.PairKeyUnknown, "%w", err) // of Identity's check
}

// certified is an error of a handshake in which certificates of authorities prove names. A far relay learns
// by an alert that its own was refused, a near one by HELLO.
func certified(by bool, err error) error {
	if !by || problemOf(err) != flow.PairKeyUnknown {
		return err
	}
	if _, alerted := alertOf(err); alerted {
		return problem(flow.PairCertificate, "%s%w", certificateProblems[certificateRefused], silently(err))
	}
	return problem(flow.PairCertificate, "%w", err)
}

// The problems of HELLO by which a far relay refuses the near one's certificate. They tell a stranger no
// more than what it could do about that.
const (
	certificateRefused = string(flow.PairCertificate)
	certificateExpired = certificateRefused + "-expired"
	certificateForeign = certificateRefused + "-foreign"
)

// certificateProblems are those problems in words, for the relay that is refused.
var certificateProblems = map[string]string{
	certificateRefused: "the other relay refuses this host's certificate; its status says why",
	certificateExpired: "by the other relay's clock this host's certificate has expired, or is not valid yet",
	certificateForeign: "the other relay trusts no authority that has issued this host's certificate",
}

func certificateProblem(err error) string {
	switch {
	case trust.Expired(err):
		return certificateExpired
	case trust.Foreign(err):
		return certificateForeign
	}
	return certificateRefused
}

// vanished finds that the path drops what was sent after the handshake of TCP. What each end sends
// first ends with a small segment. If that arrives, and the large one before it does not, the size is
// the reason: of this end's segments the other one acknowledges the small one alone, and of the other
// one's this end has the small one out of order, and no byte in order.
func vanished(bulk *bulkConn, err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	var info tcpinfo.Info
	if !kernelSays(bulk, func(i *tcpinfo.Info) bool { info = *i; return true }) {
		return err
	}
	const drops = "connected, and small segments cross the path, but one of up to %d bytes%s does not, and no ICMP message says why%w"
	lost := info.Unacked > 0 && info.Retransmits > 0
	switch {
	case lost && info.Sacked > 0:
		return problem(flow.PairPathMTU, drops, info.SndMSS, "", silently(err))
	case lost:
		return problem(flow.PairPathDown, "connected, but what is sent then is dropped on the way, as by a firewall%w", silently(err))
	case info.RcvOOOPack > 0 && info.BytesReceived == 0:
		return problem(flow.PairPathMTU, drops, info.AdvMSS, " from the far relay", silently(err))
	}
	return err
}

const (
	alertNoProtocol = 120 // RFC 7301, section 3.2
	// alertBusy says that the handshake was given up for another one. Its number is one for
	// private use (RFC 8446, section 11).
	alertBusy = 224
)

// The alerts by which a peer refuses a certificate (RFC 8446, section 6.2).
var certificateAlerts = map[uint8]bool{42: true, 43: true, 44: true, 45: true, 46: true, 48: true, 49: true, 116: true}

// busyAlert is the record of that alert: fatal, before anything is encrypted (RFC 8446, sections
// 5.1 and 6).
var busyAlert = []byte{21, 3, 3, 0, 2, 2, alertBusy}

// alertOf returns the number of a TLS alert that the other end sent. crypto/tls does not
// export its type, a uint8.
func alertOf(err error) (number uint8, ok bool) {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return 0, false
	}
	if v := reflect.ValueOf(remote.Err); v.Kind() == reflect.Uint8 {
		return uint8(v.Uint()), true
	}
	return 0, false
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func isSystem(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

func refusedBy(h wire.Hello) error {
	text := certificateProblems[h.Problem]
	switch {
	case text != "":
		return problem(flow.PairCertificate, "%s", text)
	case h.Problem != "":
		return problem(toldProblem(h.Problem), "the other relay answers %q", h.Problem)
	case !h.Speaks():
		return problem(flow.PairVersion, "the other relay speaks versions %d to %d, this one %d to %d",
			h.Lowest, h.Highest, wire.LowestVersion, wire.HighestVersion)
	}
	return nil
}

// encryptRefusal is why a far tunnel refuses a peer that wants it otherwise.
func encryptRefusal(peer string, theirs, ours bool, tunnel string) error {
	words := map[bool]string{true: "off", false: "on"}
	return problem(flow.PairEncrypt, "peer %s has encrypt: %s, tunnel %s has encrypt: %s", peer, words[theirs], tunnel, words[ours])
}

// agreed reports why an answer does not have what the near end wants; nil: it has. A
// far relay of this release has refused already; an older one leaves features out.
func agreed(want, got wire.Features) error {
	switch missing := want & modeFeatures &^ got; {
	case missing&wire.FeatureClear != 0:
		return problem(flow.PairEncrypt, "this relay has encrypt: off, the other one encrypts")
	case missing != 0:
		return problem(flow.PairVersion, "the other relay does not know resume: off")
	}
	return nil
}

const modeFeatures = wire.FeatureClear | wire.FeatureNoResume

var errNoResume = errors.New("the lane was lost, and flows of this pair do not resume")

// farProblems are those that a far relay may name.
var farProblems = []flow.PairProblem{flow.PairVersion, flow.PairDenied, flow.PairDraining, flow.PairEncrypt, flow.PairBusy}

// toldProblem is the problem that the other relay names; any other one counts as denied.
func toldProblem(text string) flow.PairProblem {
	if p := flow.PairProblem(text); slices.Contains(farProblems, p) {
		return p
	}
	return flow.PairDenied
}

// refuses reports whether somebody answers, and no session will stand until something is
// changed there or here.
func refuses(p flow.PairProblem) bool {
	return p != "" && p != flow.PairPathDown && p != flow.PairPathMTU && p != flow.PairDraining && !waits(p)
}

// waits reports whether the far relay has more work than it does.
func waits(p flow.PairProblem) bool { return p == flow.PairBusy || p == flow.PairOverloaded }
