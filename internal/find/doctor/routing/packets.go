package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// packet is a packet that passed a device.
type packet struct {
	at       time.Time
	device   string
	outgoing bool
	from, to netip.AddrPort // ports of TCP alone
	protocol byte
	flags    byte   // of TCP
	echo     uint16 // identifier of an echo reply
	router   uint8  // identifier of a VRRP advert
}

func (p *packet) isEcho() bool {
	return p.protocol == unix.IPPROTO_ICMP || p.protocol == unix.IPPROTO_ICMPV6
}

// The flags of TCP.
const (
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

const protocolVRRP = 112

// watch collects the packets that the verdicts need, on all devices.
type watch struct {
	fd      int
	began   time.Time
	stopped atomic.Bool
	done    chan struct{}

	mu      sync.Mutex
	packets []packet
	read    time.Time  // what passed before is in packets
	more    *sync.Cond // read has moved, or nothing more comes
	ended   bool
	names   map[int]string
}

// maxPackets bounds what a busy host makes a watch keep.
const maxPackets = 1 << 16

// startWatch begins to collect TCP packets with SYN or RST, or with one of the ports,
// echo replies, and VRRP adverts. It needs CAP_NET_RAW.
func startWatch(ports []uint16) (*watch, error) {
	// The protocol comes with bind, so that no packet gets past the filter.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("watch packets: %w", err)
	}
	program, err := filter(ports)
	if err == nil {
		err = errors.Join(
			unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
				&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL)}),
		)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch packets: %w", err)
	}
	w := &watch{fd: fd, began: time.Now(), done: make(chan struct{}), names: map[int]string{}}
	w.more = sync.NewCond(&w.mu)
	devices, err := net.Interfaces()
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	for _, d := range devices {
		w.names[d.Index] = d.Name
	}
	go w.run()
	return w, nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// filter is the program that has the kernel hand over only packets that matter.
func filter(ports []uint16) ([]unix.SockFilter, error) {
	const bytes = 128 // of a packet, with its headers
	take, drop := bpf.RetConstant{Val: bytes}, bpf.RetConstant{}
	equals := func(v uint32) bpf.Instruction { return bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1} }
	// load loads a field behind the IP header.
	type load func(off uint32, size int) bpf.Instruction
	tcp := func(load load) (all []bpf.Instruction) {
		all = append(all, load(13, 1), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: flagSYN | flagRST, SkipFalse: 1}, take)
		for _, port := range ports {
			for _, off := range []uint32{0, 2} {
				all = append(all, load(off, 2), equals(uint32(port)), take)
			}
		}
		return append(all, drop)
	}
	family := func(protocolAt, icmp, echoReply uint32, prepare []bpf.Instruction, load load) []bpf.Instruction {
		all := []bpf.Instruction{
			bpf.LoadAbsolute{Off: protocolAt, Size: 1},
			equals(protocolVRRP), take,
			bpf.StoreScratch{Src: bpf.RegA, N: 0},
		}
		all = append(all, prepare...)
		all = append(all, bpf.LoadScratch{Dst: bpf.RegA, N: 0},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmp, SkipFalse: 4},
			load(0, 1), equals(echoReply), take, drop,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 1}, drop)
		return append(all, tcp(load)...)
	}
	four := family(9, unix.IPPROTO_ICMP, 0, []bpf.Instruction{bpf.LoadMemShift{Off: 0}},
		func(off uint32, size int) bpf.Instruction { return bpf.LoadIndirect{Off: off, Size: size} })
	six := family(6, unix.IPPROTO_ICMPV6, 129, nil,
		func(off uint32, size int) bpf.Instruction { return bpf.LoadAbsolute{Off: 40 + off, Size: size} })
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 1}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 4, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(four))},
	}
	program = append(append(program, four...),
		bpf.LoadAbsolute{Off: 0, Size: 1}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 6, SkipTrue: 1}, drop)
	raw, err := bpf.Assemble(append(program, six...))
	if err != nil {
		return nil, err
	}
	all := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		all[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return all, nil
}

func (w *watch) run() {
	defer close(w.done)
	defer w.caughtUp(time.Time{}, true)
	b, control := make([]byte, 256), make([]byte, 128)
	for {
		asked := time.Now()
		n, controls, _, from, err := unix.Recvmsg(w.fd, b, control, 0)
		switch {
		case err == nil:
			at := passedAt(control[:controls])
			ll, ok := from.(*unix.SockaddrLinklayer)
			if p, parsed := parsePacket(b[:n]); ok && parsed {
				p.at, p.device, p.outgoing = at, w.names[ll.Ifindex], ll.Pkttype == unix.PACKET_OUTGOING
				w.mu.Lock()
				if len(w.packets) < maxPackets {
					w.packets = append(w.packets, p)
				}
				w.mu.Unlock()
			}
			w.caughtUp(at, false)
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENETDOWN):
			return
		case w.stopped.Load():
			return
		case errors.Is(err, unix.EAGAIN):
			w.caughtUp(asked, false)
		}
	}
}

// passedAt is the kernel's time of a packet.
func passedAt(control []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(control)
	if err == nil {
		for _, m := range messages {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
				return time.Unix((*unix.Timespec)(unsafe.Pointer(&m.Data[0])).Unix())
			}
		}
	}
	return time.Now()
}

// caughtUp notes until when all packets were read.
func (w *watch) caughtUp(until time.Time, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until.After(w.read) {
		w.read = until
	}
	w.ended = w.ended || ended
	w.more.Broadcast()
}

// await waits until what passed before a moment was read.
func (w *watch) await(moment time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.read.Before(moment) && !w.ended {
		w.more.Wait()
	}
}

func (w *watch) stop() {
	w.stopped.Store(true)
	<-w.done
	unix.Close(w.fd)
}

// seen returns the packets so far.
func (w *watch) seen() []packet {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.packets
}

// devices returns the devices of packets, in order, each once.
func (w *watch) devices(wanted func(*packet) bool) (names []string) {
	all := w.seen()
	for i := range all {
		if p := &all[i]; wanted(p) && !has(names, p.device) {
			names = append(names, p.device)
		}
	}
	return names
}

// parsePacket reads a packet that begins with its IP header.
func parsePacket(b []byte) (p packet, ok bool) {
	const (
		header4, header6 = 20, 40
		echoReply4       = 0
		echoReply6       = 129
	)
	var from, to netip.Addr
	switch {
	case len(b) >= header4 && b[0]>>4 == 4:
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		p.protocol, b = b[9], b[min(len(b), int(b[0]&15)*4):]
	case len(b) >= header6 && b[0]>>4 == 6:
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		p.protocol, b = b[6], b[header6:]
	default:
		return p, false
	}
	var fromPort, toPort uint16
	switch {
	case p.protocol == unix.IPPROTO_TCP && len(b) >= 14:
		fromPort, toPort, p.flags = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[13]
	case p.isEcho() && len(b) >= 8 && (b[0] == echoReply4 && !from.Is6() || b[0] == echoReply6 && from.Is6()):
		p.echo = binary.BigEndian.Uint16(b[4:])
	case p.protocol == protocolVRRP && len(b) >= 2:
		p.router = b[1]
	default:
		return p, false
	}
	p.from, p.to = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return p, true
}
