package hold

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/checksum"
)

// SYN is a first SYN that is held.
type SYN struct {
	Place
	From, To netip.AddrPort
	ip, tcp  []byte // headers
}

// Sequence is the SYN's sequence number, which copies of it have as well.
func (s SYN) Sequence() uint32 { return binary.BigEndian.Uint32(s.tcp[4:]) }

func numberOf(record []byte) uint32 {
	if len(record) < ipAt {
		return ^uint32(0)
	}
	return binary.NativeEndian.Uint32(record)
}

// parse makes a SYN of a filter's copy, which it keeps. It returns false for other
// segments.
func parse(record []byte, p Place) (s SYN, ok bool) {
	if len(record) < recordSize {
		return s, false
	}
	s.Place = p
	s.ip, s.tcp = record[ipAt:tcpAt], record[tcpAt:recordSize]
	length := int(s.tcp[12]>>4) * 4
	const finSynRstAck, syn = 0x17, 0x02
	if length < tcpHeader || s.tcp[13]&finSynRstAck != syn {
		return s, false
	}
	s.tcp = s.tcp[:length]
	var from, to netip.Addr
	if p.Six {
		if s.ip[0]>>4 != 6 {
			return s, false
		}
		from, to = netip.AddrFrom16([16]byte(s.ip[8:])), netip.AddrFrom16([16]byte(s.ip[24:]))
	} else {
		if s.ip[0]>>4 != 4 {
			return s, false
		}
		s.ip = s.ip[:ip4Header]
		from, to = netip.AddrFrom4([4]byte(s.ip[12:])), netip.AddrFrom4([4]byte(s.ip[16:]))
	}
	s.From = netip.AddrPortFrom(from, binary.BigEndian.Uint16(s.tcp[0:]))
	s.To = netip.AddrPortFrom(to, binary.BigEndian.Uint16(s.tcp[2:]))
	return s, true
}

// frame is the SYN as an interface receives it, without payload, options of IPv4 and
// extensions of IPv6. The kernel left the checksum of a SYN from this machine to the
// device, so it is made anew.
func (s SYN) frame(destination [6]byte, as Answer) []byte {
	const etherHeader = 14
	source := SourceOf(as)
	b := make([]byte, 0, etherHeader+len(s.ip)+len(s.tcp))
	b = append(append(b, destination[:]...), source[:]...)
	protocol := uint16(unix.ETH_P_IP)
	if s.Six {
		protocol = unix.ETH_P_IPV6
	}
	b = binary.BigEndian.AppendUint16(b, protocol)
	b = append(append(b, s.ip...), s.tcp...)
	ip, tcp := b[etherHeader:][:len(s.ip)], b[etherHeader+len(s.ip):]
	if s.Six {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(tcp)))
		ip[6] = unix.IPPROTO_TCP
	} else {
		ip[0] = 4<<4 | ip4Header/4
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(tcp)))
		ip[6], ip[7] = ip[6]&0x40, 0 // not a fragment
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], checksum.Of(ip))
	}
	addresses := ip[12:20]
	if s.Six {
		addresses = ip[8:40]
	}
	pseudo := binary.BigEndian.AppendUint16([]byte{0, unix.IPPROTO_TCP}, uint16(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], 0)
	binary.BigEndian.PutUint16(tcp[16:], checksum.Of(addresses, pseudo, tcp))
	return b
}

// putBack has the kernel receive the SYN once more.
func (s SYN) putBack(live *ebpf.Program, socket int, as Answer) error {
	index, address, err := device(socket, s.Interface)
	if err != nil {
		return fmt.Errorf("find the interface %s: %w", s.Interface, err)
	}
	return receive(live, s.frame(address, as), index)
}

// device returns the index of an interface and its address of Ethernet, zeros if it has
// none. The interface may have been made anew since the last SYN.
func device(socket int, name string) (index int, address [6]byte, err error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, address, err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFINDEX, request); err != nil {
		return 0, address, err
	}
	var hardware struct { // struct ifreq, of which Ifreq does not give the address
		name    [unix.IFNAMSIZ]byte
		family  uint16
		address [22]byte
	}
	copy(hardware.name[:], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCGIFHWADDR, uintptr(unsafe.Pointer(&hardware)))
	if errno != 0 {
		return 0, address, errno
	}
	copy(address[:], hardware.address[:])
	return int(request.Uint32()), address, nil
}
