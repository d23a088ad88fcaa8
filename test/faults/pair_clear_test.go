package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/carry/pair/wire"
	"longhaul/lab/hosts"
	"longhaul/lab/link"
	"longhaul/test/nettest"
)

// TestClearPairInACapture holds that who captures the WAN of a pair in clear sees no address of a
// client, and no beginning or end of a flow, while the bytes of flows are there to be read.
func TestClearPairInACapture(t *testing.T) {
	t.Parallel()
	clients := []netip.Addr{netip.MustParseAddr("203.0.113.77"), netip.MustParseAddr("2001:db8:7777::9")}
	for name, mode := range map[string]pairMode{"resume": inClear, "no resume": inClearNoResume} {
		for _, delay := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, %v", name, delay), func(t *testing.T) {
				t.Parallel()
				p := newPairPathOver(t, wan("wan", nearAddress, farAddress, link.Settings{MTU: 1500, Delay: delay / 2}))
				for _, client := range clients {
					nettest.Must(t, p.nearHost.Address("lo", netip.PrefixFrom(client, client.BitLen())))
				}
				p.listen = ":9000"
				p.in(mode)
				c := capture(t, p.nearHost, "wan")
				p.echo()
				p.start()
				for _, client := range clients {
					for _, size := range []int{0, 100, 300_000} {
						p.exchangeFrom(client, []byte(fmt.Sprintf("marker%d", size)), size)
					}
				}
				p.near.expectLog(`msg=flow .*\bend=end `)
				p.expectNoFlows()
				c.check(clients)
			})
		}
	}
}

// exchangeFrom sends bytes to the echo from an address of the near host, ends, and expects them and
// the end.
func (p *pairPath) exchangeFrom(client netip.Addr, text []byte, size int) {
	p.t.Helper()
	var c net.Conn
	nettest.Must(p.t, p.nearHost.Do(func() (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: client.AsSlice()}, Control: ethernet}
		d.SetMultipathTCP(false)
		c, err = d.DialContext(p.t.Context(), "tcp", netip.AddrPortFrom(client, 9000).String())
		return err
	}))
	defer c.Close()
	nettest.Must(p.t, c.SetDeadline(time.Now().Add(patience)))
	all := append(slices.Clone(text), bytes.Repeat([]byte("longhaul"), size/8)...)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(all)
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	nettest.Must(p.t, errors.Join(err, <-sent))
	if !bytes.Equal(got, all) {
		p.t.Errorf("%d bytes of %d come back", len(got), len(all))
	}
}

// captured are the TCP connections over a device, by both addresses and ports.
type captured struct {
	t       *testing.T
	fd      int
	stop    func()
	streams map[string]*capturedStream
}

// capturedStream is one direction of a connection.
type capturedStream struct {
	first  uint32 // sequence number of the first byte
	pieces map[uint32][]byte
}

// capture reads the packets of a host's device until check.
func capture(t *testing.T, h *hosts.Host, device string) *captured {
	t.Helper()
	c, done := &captured{t: t, streams: map[string]*capturedStream{}}, make(chan struct{})
	nettest.Must(t, h.Do(func() (err error) {
		index, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(
			unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index.Index}))
	}))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		b := make([]byte, 128<<10)
		for {
			n, _, err := unix.Recvfrom(c.fd, b, 0)
			switch {
			case err == nil:
				c.packet(b[:n])
			case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR), ctx.Err() != nil:
				return
			}
		}
	}()
	c.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(func() {
		c.stop()
		unix.Close(c.fd)
	})
	return c
}

// packet takes an IPv4 packet.
func (c *captured) packet(ip []byte) {
	if len(ip) < 40 || ip[0]>>4 != 4 || ip[9] != unix.IPPROTO_TCP {
		return
	}
	tcp := ip[int(ip[0]&15)*4:]
	key := fmt.Sprintf("%v:%v %x", ip[12:16], ip[16:20], tcp[:4])
	s := c.streams[key]
	if s == nil {
		s = &capturedStream{pieces: map[uint32][]byte{}}
		c.streams[key] = s
	}
	number, syn := binary.BigEndian.Uint32(tcp[4:]), tcp[13]&2 != 0
	if syn {
		s.first = number + 1
	}
	if data := tcp[int(tcp[12]>>4)*4:]; len(data) > 0 && !syn && len(data) > len(s.pieces[number]) {
		s.pieces[number] = slices.Clone(data)
	}
}

// bytes puts the stream together, as far as the capture has it without a gap.
func (s *capturedStream) bytes() (all []byte) {
	numbers := make([]uint32, 0, len(s.pieces))
	for n := range s.pieces {
		numbers = append(numbers, n-s.first)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		b := s.pieces[n+s.first]
		if at := uint32(len(all)); n <= at && n+uint32(len(b)) > at {
			all = append(all, b[at-n:]...)
		}
	}
	return all
}

// check looks for what must not be in the capture, and for what must.
func (c *captured) check(clients []netip.Addr) {
	c.t.Helper()
	c.stop()
	if stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil || stats.Drops > 0 {
		c.t.Fatalf("the capture has missed packets: %+v, %v", stats, err)
	}
	types, marked := map[wire.FrameType]int{}, false
	for key, s := range c.streams {
		all := s.bytes()
		marked = marked || bytes.Contains(all, []byte("marker"))
		for _, client := range clients {
			sixteen := client.As16()
			for form, b := range map[string][]byte{"binary": client.AsSlice(), "16 bytes": sixteen[:], "text": []byte(client.String())} {
				if bytes.Contains(all, b) {
					c.t.Errorf("the address of client %v is in the capture (%s, connection %s)", client, form, key)
				}
			}
		}
		for _, frame := range framesOf(all) {
			types[frame]++
		}
	}
	if !marked || types[wire.FrameData] == 0 {
		c.t.Errorf("the capture does not show bytes of flows: frames by type %v", types)
	}
	if types[wire.FrameOpen] > 0 || types[wire.FrameEnd] > 0 {
		c.t.Errorf("beginnings or ends are in the capture: frames by type %v", types)
	}
}

// framesOf are the types of the frames in clear of one direction of a lane. A preface of the near
// relay and records of TLS come before them.
func framesOf(b []byte) (types []wire.FrameType) {
	const recordHead, lowestRecord = 5, 20
	if len(b) > preface.Size && b[0] == 0 {
		b = b[preface.Size:]
	}
	for len(b) >= wire.HeadSize {
		n := recordHead + int(binary.BigEndian.Uint16(b[3:]))
		if b[0] < lowestRecord {
			frame, err := wire.ParseFrame(b)
			if err != nil {
				return types
			}
			types = append(types, frame.Type)
			n = wire.HeadSize + wire.SumSize + frame.Length
			if frame.Type == wire.FrameAttach {
				n += wire.SumSize
			}
		}
		b = b[min(n, len(b)):]
	}
	return types
}
