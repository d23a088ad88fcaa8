package hold

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
)

// The filter's copy of a SYN: the number of its listener, the IP header without options
// or extensions, the TCP header with options.
const (
	ipAt       = 4
	ipMost     = 40
	tcpAt      = ipAt + ipMost
	tcpMost    = 60
	recordSize = tcpAt + tcpMost

	ip4Header = 20
	ip6Header = 40
	tcpHeader = 20
)

// newFilter is a filter for a listening TCP socket. It copies the headers of each segment
// to the ring and drops the segment. Socket filters of TCP see segments from the TCP
// header on.
func newFilter(ring *ebpf.Map, number uint32, six bool) (*ebpf.Program, error) {
	const (
		stack       = (recordSize + 7) &^ 7
		networkBase = 1 // BPF_HDR_START_NET
		drop        = "drop"
	)
	ipHeader := int32(ip4Header)
	if six {
		ipHeader = ip6Header
	}
	at := func(offset int32) int32 { return offset - stack }
	pointTo := func(r asm.Register, offset int32) asm.Instructions {
		return asm.Instructions{asm.Mov.Reg(r, asm.RFP), asm.Add.Imm(r, at(offset))}
	}
	var program asm.Instructions
	add := func(all ...asm.Instruction) { program = append(program, all...) }

	add(asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R1, 0))
	for offset := int32(0); offset < stack; offset += 8 {
		add(asm.StoreMem(asm.RFP, int16(at(offset)), asm.R1, asm.DWord))
	}
	add(asm.StoreImm(asm.RFP, int16(at(0)), int64(number), asm.Word))

	add(asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0))
	add(pointTo(asm.R3, ipAt)...)
	add(asm.Mov.Imm(asm.R4, ipHeader), asm.Mov.Imm(asm.R5, networkBase), asm.FnSkbLoadBytesRelative.Call(),
		asm.JNE.Imm(asm.R0, 0, drop))

	// The length of the TCP header is in units of 4 bytes in the upper half of byte 12.
	add(asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 12))
	add(pointTo(asm.R3, tcpAt)...)
	add(asm.Mov.Imm(asm.R4, 1), asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, drop),
		asm.LoadMem(asm.R4, asm.RFP, int16(at(tcpAt)), asm.Byte), asm.RSh.Imm(asm.R4, 2), asm.And.Imm(asm.R4, tcpMost),
		asm.JLT.Imm(asm.R4, tcpHeader, drop))
	add(asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0))
	add(pointTo(asm.R3, tcpAt)...)
	add(asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, drop))

	add(asm.LoadMapPtr(asm.R1, ring.FD()))
	add(pointTo(asm.R2, 0)...)
	add(asm.Mov.Imm(asm.R3, recordSize), asm.Mov.Imm(asm.R4, 0), asm.FnRingbufOutput.Call())
	add(asm.Mov.Imm(asm.R0, 0).WithSymbol(drop), asm.Return())
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "longhaul_hold", Type: ebpf.SocketFilter, Instructions: program, License: "Apache-2.0"})
}

// What an XDP program does with a frame.
const (
	xdpDrop = 1
	xdpPass = 2
)

func newXDP(name string, does int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, does), asm.Return()}})
}

func newPass() (*ebpf.Program, error) { return newXDP("longhaul_pass", xdpPass) }

// tryLive has the kernel drop a frame as if it came from the wire.
func tryLive() error {
	p, err := newXDP("longhaul_drop", xdpDrop)
	if err != nil {
		return loadError("load a program that drops a frame", err)
	}
	defer p.Close()
	const loopback = 1
	err = receive(p, make([]byte, 64), loopback)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return &kernel.ErrUnsupported{Feature: feature, Needs: since + " or later, which receives frames of a process"}
	}
	return err
}

// xdpContext is struct xdp_md.
type xdpContext struct{ Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32 }

// receive runs an XDP program with a frame that an interface is to have received.
func receive(p *ebpf.Program, frame []byte, ifindex int) error {
	const liveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	_, err := p.Run(&ebpf.RunOptions{
		Data: frame, Flags: liveFrames, Repeat: 1, BatchSize: 1,
		Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(ifindex)},
	})
	if err != nil {
		return fmt.Errorf("put a frame into the kernel: %w", err)
	}
	return nil
}
