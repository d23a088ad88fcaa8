package linktest

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/checksum"
	"longhaul/lab/hosts"
)

// Injector sends IP packets as they are from a host's device.
type Injector struct{ v4, v6 int }

// NewInjector opens the raw sockets, until the test ends.
func NewInjector(t testing.TB, h *hosts.Host, device string) Injector {
	t.Helper()
	open := func(family int) (fd int) {
		err := h.Do(func() (err error) {
			if fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
				return err
			}
			return unix.BindToDevice(fd, device)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	return Injector{open(unix.AF_INET), open(unix.AF_INET6)}
}

// Send sends a packet with its IP header.
func (i Injector) Send(packet []byte) error {
	if packet[0]>>4 == 4 {
		return unix.Sendto(i.v4, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
	}
	return unix.Sendto(i.v6, packet, 0, &unix.SockaddrInet6{Addr: [16]byte(packet[24:40])})
}

const synFlag = 0x02

// SYNPacket is the first packet of a connection, with its IP header. The options of TCP
// are whole words of 4 bytes.
func SYNPacket(from, to netip.AddrPort, options ...byte) []byte {
	source, target := from.Addr().AsSlice(), to.Addr().AsSlice()
	tcp := binary.BigEndian.AppendUint16(nil, from.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, to.Port())
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 0, byte(5+len(options)/4)<<4, synFlag, 0xff, 0xff, 0, 0, 0, 0)
	tcp = append(tcp, options...)
	binary.BigEndian.PutUint16(tcp[16:], checksum.Of(source, target, []byte{0, unix.IPPROTO_TCP, 0, byte(len(tcp))}, tcp))
	ip := []byte{0x60, 0, 0, 0, 0, byte(len(tcp)), unix.IPPROTO_TCP, 64}
	if from.Addr().Is4() {
		ip = []byte{0x45, 0, 0, byte(20 + len(tcp)), 0, 1, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
	}
	return append(append(append(ip, source...), target...), tcp...)
}
