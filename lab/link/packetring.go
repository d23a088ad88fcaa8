package link

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetRing is the receive ring of a packet socket (TPACKET_V2): equal slots
// that the kernel fills and the reader returns in order. Unlike a receive
// buffer it is not bounded by net.core.rmem_max.
type packetRing struct {
	memory    []byte
	slotBytes int
	perBlock  int
	block     int // bytes
	slots     int
	current   int

	truncated atomic.Uint64 // lost packets larger than a slot
}

// ringBlockBytes is the kernel's allocation unit of the ring.
const ringBlockBytes = 1 << 20

func newPacketRing(fd, packetBytes, slots int) (*packetRing, error) {
	// A slot's header, a link-layer address, padding and the vnetHeader precede
	// the packet.
	const overhead = 256
	slotBytes := (packetBytes + ethernetHeader + overhead + 15) &^ 15 // TPACKET_ALIGNMENT
	perBlock := ringBlockBytes / slotBytes
	blocks := (slots + perBlock - 1) / perBlock
	r := &packetRing{slotBytes: slotBytes, perBlock: perBlock, block: ringBlockBytes, slots: blocks * perBlock}
	request := &unix.TpacketReq{
		Block_size: ringBlockBytes,
		Block_nr:   uint32(blocks),
		Frame_size: uint32(slotBytes),
		Frame_nr:   uint32(r.slots),
	}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, request); err != nil {
		return nil, fmt.Errorf("make a receive ring of %d MiB: %w", blocks*ringBlockBytes>>20, err)
	}
	memory, err := unix.Mmap(fd, 0, blocks*ringBlockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the receive ring of %d MiB: %w", blocks*ringBlockBytes>>20, err)
	}
	r.memory = memory
	return r, nil
}

func (r *packetRing) header() *unix.Tpacket2Hdr {
	offset := r.current/r.perBlock*r.block + r.current%r.perBlock*r.slotBytes
	return (*unix.Tpacket2Hdr)(unsafe.Pointer(&r.memory[offset]))
}

// next returns the oldest packet of the ring, beginning with its vnetHeader, or
// nil if there is none. It is valid until release.
func (r *packetRing) next() ([]byte, error) {
	for {
		h := r.header()
		if atomic.LoadUint32(&h.Status)&unix.TP_STATUS_USER == 0 {
			return nil, nil
		}
		start, length := int(h.Mac)-vnetHeaderLen, vnetHeaderLen+int(h.Snaplen)
		if start < 0 || start+length > r.slotBytes {
			return nil, fmt.Errorf("receive ring: invalid slot: %d bytes at %d of %d", length, start, r.slotBytes)
		}
		if h.Snaplen == h.Len {
			slot := unsafe.Slice((*byte)(unsafe.Pointer(h)), r.slotBytes)
			return slot[start : start+length], nil
		}
		r.truncated.Add(1)
		r.release()
	}
}

// release returns the current slot to the kernel.
func (r *packetRing) release() {
	atomic.StoreUint32(&r.header().Status, unix.TP_STATUS_KERNEL)
	if r.current++; r.current == r.slots {
		r.current = 0
	}
}

func (r *packetRing) close() error { return unix.Munmap(r.memory) }
