// Package hold keeps first SYNs of TCP from being answered until somebody decides what
// their clients get.
//
// A held SYN reaches a listening socket whose filter, a BPF program, copies its headers
// to this process and drops it. So it has passed everything that an accepted one passes.
// The answer puts the SYN back into the kernel, as if the interface had received it once
// more, with a source address of Ethernet that names the answer. Rules of nftables do the
// rest, see [SourceOf].
package hold

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/remedy"
)

// Answer is what a client gets.
type Answer uint8

// The answers. Their numbers are part of the rules of nftables.
const (
	Connect         Answer = iota // the SYN goes to the ordinary listener
	Reset                         // connection refused
	NetUnreachable                // ICMP: no route
	HostUnreachable               // ICMP: address unreachable
	AdminProhibited               // ICMP: a firewall on the way rejects it
)

// SourcePrefix begins the source address of Ethernet of SYNs that are put back: a locally
// administered one. The answer is its last byte.
var SourcePrefix = [5]byte{0x02, 'l', 'h', 'a', 'l'}

// SourceOf is the source address of a SYN that is put back with an answer.
func SourceOf(a Answer) [6]byte {
	p := SourcePrefix
	return [6]byte{p[0], p[1], p[2], p[3], p[4], byte(a)}
}

const feature = "refuse: mirror"

// needed are the capabilities to hold SYNs, beside that for transparent sockets.
var needed = []kernel.Capability{kernel.BPF, kernel.NetAdmin}

// maxAnswers is the number of answers that wait for their turn. Beyond it a SYN is not
// answered, and its client sends another.
const maxAnswers = 8192

// ringBytes is the size of the ring of copies: room for 2000.
const ringBytes = 256 << 10

// Holder holds SYNs.
type Holder struct {
	held   func(SYN)
	failed func(error)

	ring   *ebpf.Map
	reader *ringbuf.Reader
	live   *ebpf.Program // puts frames back
	socket int           // for questions about interfaces

	mu        sync.Mutex
	listeners []*listener // by number
	reading   sync.WaitGroup
	answers   chan answered
	answering sync.WaitGroup
}

type listener struct {
	Place
	fd      int
	program *ebpf.Program
}

// Place is where SYNs are held.
type Place struct {
	Tunnel    string
	Interface string
	Six       bool // for IPv6
}

type answered struct {
	syn SYN
	as  Answer
}

// Check returns a [*kernel.ErrUnsupported] if this kernel or process cannot hold SYNs.
func Check() error {
	h, err := New(nil, nil)
	if err == nil {
		h.Close()
	}
	return err
}

// New begins to serve. held is called with every SYN, and failed with the error of an
// answer that does not reach its client, each from one goroutine.
func New(held func(SYN), failed func(error)) (_ *Holder, err error) {
	if err := kernel.CheckBPF(feature, needed...); err != nil {
		return nil, err
	}
	h := &Holder{held: held, failed: failed, socket: -1, answers: make(chan answered, maxAnswers)}
	defer func() {
		if err != nil {
			h.free()
		}
	}()
	if h.ring, err = ebpf.NewMap(&ebpf.MapSpec{Name: "longhaul_syns", Type: ebpf.RingBuf, MaxEntries: ringBytes}); err != nil {
		return nil, loadError("make the ring of SYNs", err)
	}
	if h.live, err = newPass(); err != nil {
		return nil, loadError("load the program that puts SYNs back", err)
	}
	if err := tryLive(); err != nil {
		return nil, err
	}
	if h.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	if h.reader, err = ringbuf.NewReader(h.ring); err != nil {
		return nil, fmt.Errorf("read the ring of SYNs: %w", err)
	}
	h.reading.Go(h.read)
	h.answering.Go(h.answer)
	return h, nil
}

func loadError(what string, err error) error {
	var rejected *ebpf.VerifierError
	switch {
	case errors.As(err, &rejected) && !remedy.OutOfDescriptors(err): // with none left, the log finds no fault
		return kernel.Rejected(feature, since, rejected, rejected.Log)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return &kernel.ErrUnsupported{Feature: feature, Needs: since + " or later: " + err.Error()}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// since is the first kernel that receives frames of a process (live frames of XDP).
const since = "Linux 5.18"

// Listen holds the SYNs that the kernel delivers to the returned port of the loopback
// address of the place's family.
func (h *Holder) Listen(p Place) (port uint16, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &listener{Place: p}
	if l.program, err = newFilter(h.ring, uint32(len(h.listeners)), p.Six); err != nil {
		return 0, loadError("load the filter that holds SYNs", err)
	}
	if l.fd, port, err = listen(p.Six, l.program.FD()); err != nil {
		l.program.Close()
		return 0, fmt.Errorf("hold the SYNs of tunnel %s: %w", p.Tunnel, err)
	}
	h.listeners = append(h.listeners, l)
	return port, nil
}

func listen(six bool, filter int) (fd int, port uint16, err error) {
	family, level, option := unix.AF_INET, unix.SOL_IP, unix.IP_TRANSPARENT
	var address unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if six {
		family, level, option = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TRANSPARENT
		address = &unix.SockaddrInet6{Addr: netip.IPv6Loopback().As16()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, 0, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return -1, 0, fmt.Errorf("make a transparent socket: %w", err)
	}
	// The filter first: no SYN is to be answered.
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, filter); err != nil {
		return -1, 0, fmt.Errorf("attach the filter: %w", err)
	}
	if err = unix.Bind(fd, address); err != nil {
		return -1, 0, fmt.Errorf("bind: %w", err)
	}
	if err = unix.Listen(fd, 1); err != nil {
		return -1, 0, fmt.Errorf("listen: %w", err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return -1, 0, err
	}
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	}
	return fd, port, nil
}

// Forget closes the listener of a tunnel: its SYNs pass.
func (h *Holder) Forget(tunnel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.listeners {
		if l.Tunnel == tunnel {
			l.close()
		}
	}
}

func (l *listener) close() {
	if l.program != nil {
		unix.Close(l.fd)
		l.program.Close()
		l.program = nil
	}
}

// read hands on the copies.
func (h *Holder) read() {
	var record ringbuf.Record
	for {
		if err := h.reader.ReadInto(&record); err != nil {
			return // closed
		}
		h.mu.Lock()
		var l *listener
		if n := numberOf(record.RawSample); int(n) < len(h.listeners) {
			l = h.listeners[n]
		}
		h.mu.Unlock()
		if l == nil {
			continue
		}
		if s, ok := parse(bytes.Clone(record.RawSample), l.Place); ok {
			h.held(s)
		}
	}
}

// Answer answers the client of a SYN. It does not block.
func (h *Holder) Answer(s SYN, as Answer) {
	select {
	case h.answers <- answered{s, as}:
	default:
	}
}

// answer puts SYNs back.
func (h *Holder) answer() {
	for a := range h.answers {
		if err := a.syn.putBack(h.live, h.socket, a.as); err != nil {
			h.failed(fmt.Errorf("answer the SYN of %s to %s: %w", a.syn.From, a.syn.To, err))
		}
	}
}

// Close stops holding: SYNs pass. Only the function that takes SYNs may still call Answer.
func (h *Holder) Close() {
	h.mu.Lock()
	for _, l := range h.listeners {
		l.close()
	}
	h.mu.Unlock()
	h.reader.Close()
	h.reading.Wait()
	close(h.answers)
	h.answering.Wait()
	h.free()
}

func (h *Holder) free() {
	if h.socket >= 0 {
		unix.Close(h.socket)
	}
	if h.live != nil {
		h.live.Close()
	}
	if h.ring != nil {
		h.ring.Close()
	}
}
