//go:build linux

package tcpinfo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

func openDiag(t testing.TB) *Diag {
	t.Helper()
	d, err := OpenDiag()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func ends(c *net.TCPConn) (local, remote netip.AddrPort) {
	return c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
}

// listed finds a connection in the complete list.
func listed(t *testing.T, d *Diag, states StateSet, local, remote netip.AddrPort) (found Connection, ok bool) {
	t.Helper()
	err := d.Each(states, func(c *Connection) {
		if c.Local == plainAddress(local) && c.Remote == plainAddress(remote) {
			found, ok = *c, true
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return found, ok
}

func inodeOf(t *testing.T, c syscall.Conn) (inode uint32) {
	t.Helper()
	withFD(t, c, func(fd int) {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			t.Fatal(err)
		}
		inode = uint32(stat.Ino)
	})
	return inode
}

func TestDiag(t *testing.T) {
	nettest.CheckLeaks(t)
	d := openDiag(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			client, server := connect(t, address)
			withFD(t, client, func(fd int) {
				if err := unix.SetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
					t.Fatal(err)
				}
			})
			const size = 10_000
			if _, err := client.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			eventually(t, client, func(i Info) bool { return i.BytesAcked == size+1 })

			local, remote := ends(client)
			c, ok := listed(t, d, Connections, local, remote)
			if !ok {
				t.Fatal("the connection is not listed")
			}
			if c.UID != uint32(os.Geteuid()) || c.Inode != inodeOf(t, client) || c.Cookie == 0 || c.CongestionControl != "reno" || c.Interface != 0 {
				t.Errorf("%+v", c)
			}
			if c.SendQueue != 0 || c.RecvQueue != 0 || !c.Memory.Known || c.Memory.SndBuf == 0 || c.Memory.RcvBuf == 0 || c.Memory.SndQueued != 0 {
				t.Errorf("queues %d and %d, memory %+v", c.SendQueue, c.RecvQueue, c.Memory)
			}
			got := mustGet(t, client)
			if c.Info.known != got.known || c.Info.BytesAcked != size+1 || c.Info.SndMSS != got.SndMSS || c.Info.State != Established {
				t.Errorf("by sock_diag %+v\nby the socket %+v", c.Info, got)
			}
			again, err := d.Get(local, remote)
			if err != nil || again.Cookie != c.Cookie || again.Inode != c.Inode {
				t.Errorf("by its addresses: %+v, %v", again, err)
			}

			// The other end has the unread bytes.
			peer, err := d.Get(remote, local)
			if err != nil || peer.RecvQueue != size || peer.Memory.RcvAlloc < size || peer.Info.BytesReceived != size || peer.Cookie == c.Cookie {
				t.Errorf("the other end: %+v, %v", peer, err)
			}
			if _, err := io.ReadFull(server, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if peer, err = d.Get(remote, local); err != nil || peer.RecvQueue != 0 {
				t.Errorf("%d bytes to read after all were read, %v", peer.RecvQueue, err)
			}
			if _, ok := listed(t, d, States(CloseWait), local, remote); ok {
				t.Error("an established connection is listed among those in close-wait")
			}
		})
	}
}

// An IPv4 client of a server that listens on [::].
func TestDiagMapped(t *testing.T) {
	d := openDiag(t)
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	client, err := dialer.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	local, remote := ends(server.(*net.TCPConn))
	c, err := d.Get(local, remote)
	if err != nil || !c.Local.Addr().Is4() || c.Inode != inodeOf(t, server.(*net.TCPConn)) {
		t.Errorf("%+v, %v", c, err)
	}
	if c, ok := listed(t, d, Connections, local, remote); !ok || c.Inode != inodeOf(t, server.(*net.TCPConn)) {
		t.Errorf("listed: %v, %+v", ok, c)
	}
}

// A connection bound to a device is found only by a lookup with the device.
func TestDiagBoundToDevice(t *testing.T) {
	d := openDiag(t)
	client, _ := connect(t, "127.0.0.1:0")
	withFD(t, client, func(fd int) {
		if err := unix.BindToDevice(fd, "lo"); err != nil {
			t.Skip(err) // before Linux 5.7, only root may do this
		}
	})
	c, err := d.Get(ends(client))
	if err != nil || c.Inode != inodeOf(t, client) || c.Interface == 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestDiagPeerOwner holds that PeerOwner returns the owner of the other end. It never returns root
// for an end that no program has open.
func TestDiagPeerOwner(t *testing.T) {
	nettest.RequireRoot(t)
	d := openDiag(t)
	const somebody = 65533
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err := lc.Listen(t.Context(), "tcp", address)
		nettest.Must(t, err)
		defer l.Close()
		for _, uid := range []int{0, somebody} {
			var client net.Conn
			nettest.Must(t, nettest.AsUser(uid, func() (err error) {
				client, err = net.Dial("tcp", l.Addr().String())
				return err
			}))
			defer client.Close()
			server, err := l.Accept()
			nettest.Must(t, err)
			defer server.Close()
			local, remote := ends(server.(*net.TCPConn))
			if got, err := d.PeerOwner(local, remote); got != uid || err != nil {
				t.Errorf("%s: the client is user %d's, %v, want %d", address, got, err, uid)
			}
			client.Close()
			nettest.Eventually(t, patience, func() bool {
				_, err = d.PeerOwner(local, remote)
				return errors.Is(err, ErrNoConnection)
			}, func() string { return fmt.Sprintf("the owner of a socket that is closed: %v", err) })
		}
	}
	client, server := connect(t, "127.0.0.1:0")
	withFD(t, client, func(fd int) { nettest.Must(t, unix.BindToDevice(fd, "lo")) })
	if uid, err := d.PeerOwner(ends(server)); !errors.Is(err, ErrNoConnection) {
		t.Errorf("one that is bound to a device: %d, %v", uid, err)
	}
}

func TestDiagWithoutConnection(t *testing.T) {
	d := openDiag(t)
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	listening := l.Addr().(*net.TCPAddr).AddrPort()
	client, server := connect(t, "127.0.0.1:0")
	local, remote := ends(client)
	client.Close()
	server.Close()
	for name, pair := range map[string][2]netip.AddrPort{
		"only a listener":   {listening, netip.MustParseAddrPort("127.0.0.1:9")},
		"nothing":           {netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2")},
		"two families":      {netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("[::1]:2")},
		"no address at all": {},
	} {
		if c, err := d.Get(pair[0], pair[1]); !errors.Is(err, ErrNoConnection) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	// The end that closed first is in TIME-WAIT for a minute.
	var after error
	nettest.Eventually(t, patience, func() bool {
		_, after = d.Get(local, remote)
		return errors.Is(after, ErrNoConnection)
	}, func() string {
		return fmt.Sprintf("asking for a connection that has ended gives %v, want %v", after, ErrNoConnection)
	})
	err = d.Each(States(Listen, TimeWait), func(c *Connection) { t.Errorf("listed: %+v", *c) })
	if err != nil {
		t.Fatal(err)
	}
}

// Unacknowledged bytes and their bound are reported.
func TestDiagQueues(t *testing.T) {
	d := openDiag(t)
	client, server := connect(t, "127.0.0.1:0")
	if err := server.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	if err := client.SetWriteBuffer(128 << 10); err != nil {
		t.Fatal(err)
	}
	writeTooMuch(t, client)
	var c Connection
	nettest.Eventually(t, patience, func() bool {
		var err error
		if c, err = d.Get(ends(client)); err != nil {
			t.Fatal(err)
		}
		// The kernel reads the one after the other, and the queue may grow in between.
		return c.SendQueue >= 32<<10 && c.Memory.SndQueued >= c.SendQueue
	}, func() string {
		return fmt.Sprintf("%d bytes to send, want at least %d, and memory for them: %+v", c.SendQueue, 32<<10, c.Memory)
	})
	if c.Memory.SndBuf != 256<<10 {
		t.Errorf("%d bytes to send, memory %+v", c.SendQueue, c.Memory)
	}
}

func TestDiagSeesTheConnectionsOfItsNamespaceOnly(t *testing.T) {
	nettest.RequireRoot(t)
	client, _ := connect(t, "127.0.0.1:0")
	result := make(chan error)
	var elsewhere *Diag
	go func() {
		// The thread stays locked, and dies in its namespace.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			elsewhere, err = OpenDiag()
		}
		result <- err
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	if err := elsewhere.Each(Connections, func(c *Connection) { t.Errorf("in an empty namespace: %+v", *c) }); err != nil {
		t.Fatal(err)
	}
	if _, err := elsewhere.Get(ends(client)); !errors.Is(err, ErrNoConnection) {
		t.Errorf("a connection of another namespace: %v", err)
	}
}

func TestDiagAllocatesNothingPerConnection(t *testing.T) {
	d := openDiag(t)
	for range 20 {
		connect(t, "127.0.0.1:0")
	}
	visited := 0
	allocations := testing.AllocsPerRun(10, func() {
		visited = 0
		if err := d.Each(Connections, func(*Connection) { visited++ }); err != nil {
			t.Fatal(err)
		}
	})
	if visited < 40 {
		t.Fatalf("%d connections", visited)
	}
	if allocations > 15 {
		t.Errorf("%v allocations for %d connections", allocations, visited)
	}
}

// message is a netlink message with its padding.
func message(order binary.ByteOrder, kind, flags uint16, seq uint32, body ...byte) []byte {
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body)+3)
	order.PutUint32(b[0:], uint32(unix.SizeofNlMsghdr+len(body)))
	order.PutUint16(b[4:], kind)
	order.PutUint16(b[6:], flags)
	order.PutUint32(b[8:], seq)
	b = append(b, body...)
	return append(b, make([]byte, -len(b)&3)...)
}

func attribute(order binary.ByteOrder, kind uint16, value []byte) []byte {
	b := make([]byte, attributeHeaderLen, attributeHeaderLen+len(value)+3)
	order.PutUint16(b[0:], uint16(attributeHeaderLen+len(value)))
	order.PutUint16(b[2:], kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// described is the message body of a connection.
func described(order binary.ByteOrder) []byte {
	b := make([]byte, diagMessageLen)
	b[0] = familyINET6
	id := b[messageID:]
	binary.BigEndian.PutUint16(id[idSourcePort:], 6000)
	binary.BigEndian.PutUint16(id[idDestPort:], 22)
	copy(id[idSource:], netip.MustParseAddr("2001:db8::1").AsSlice())
	copy(id[idDest:], netip.MustParseAddr("::ffff:192.0.2.7").AsSlice())
	order.PutUint32(id[idInterface:], 3)
	order.PutUint32(id[idCookie:], 0xcafe)
	order.PutUint32(id[idCookie+4:], 1)
	for i, v := range []uint32{10, 20, 1000, 99} {
		order.PutUint32(b[56+4*i:], v)
	}
	info := make([]byte, 248)
	info[0] = byte(Established)
	order.PutUint32(info[68:], 63_000) // rtt
	memory := make([]byte, 9*4)
	for i := range 9 {
		order.PutUint32(memory[4*i:], uint32(100+i))
	}
	b = append(b, attribute(order, attributeMemory, memory)...)
	b = append(b, attribute(order, 77, []byte{1})...) // an attribute of a later kernel
	b = append(b, attribute(order, attributeInfo, info)...)
	return append(b, attribute(order, attributeCongestion, []byte("cubic\x00"))...)
}

func TestDiagBothByteOrders(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		var c Connection
		p := connectionParser{order: order}
		if !p.parse(described(order), &c) {
			t.Fatalf("%v: not read", order)
		}
		info := c.Info
		c.Info = Info{}
		want := Connection{
			Local: netip.MustParseAddrPort("[2001:db8::1]:6000"), Remote: netip.MustParseAddrPort("192.0.2.7:22"),
			Cookie: 1<<32 | 0xcafe, Interface: 3, RecvQueue: 10, SendQueue: 20, UID: 1000, Inode: 99,
			CongestionControl: "cubic",
			Memory:            Memory{Known: true, RcvAlloc: 100, RcvBuf: 101, SndAlloc: 102, SndBuf: 103, SndQueued: 105},
		}
		if c != want || info.RTT != 63*time.Millisecond {
			t.Errorf("%v:\ngot  %+v, RTT %v\nwant %+v", order, c, info.RTT, want)
		}
	}
}

func TestDiagAnswers(t *testing.T) {
	order := binary.NativeEndian
	good := message(nativeOrder, sockDiagByFamily, unix.NLM_F_MULTI, 7, described(nativeOrder)...)
	done := message(nativeOrder, unix.NLMSG_DONE, unix.NLM_F_MULTI, 7, 0, 0, 0, 0)
	errno := func(n int32) []byte { return order.AppendUint32(nil, uint32(n)) }
	tooLong := bytes.Clone(good)
	order.PutUint32(tooLong, 1<<20)
	tests := []struct {
		name      string
		datagrams [][]byte
		dump      bool
		visits    int
		complete  bool
		err       error
	}{
		{"a list", [][]byte{append(bytes.Clone(good), good...), append(bytes.Clone(good), done...)}, true, 3, true, nil},
		{"one", [][]byte{good}, false, 1, true, nil},
		{"more to come", [][]byte{good}, true, 1, false, nil},
		{"of an earlier request", [][]byte{message(nativeOrder, sockDiagByFamily, 0, 6, described(nativeOrder)...), done}, true, 0, true, nil},
		{"not whole", [][]byte{message(nativeOrder, sockDiagByFamily, unix.NLM_F_DUMP_INTR, 7, described(nativeOrder)...), done}, true, 1, true, errInterrupted},
		{"an error", [][]byte{message(nativeOrder, unix.NLMSG_ERROR, 0, 7, errno(-int32(unix.EPERM))...)}, true, 0, true, unix.EPERM},
		{"an error at the end", [][]byte{good, message(nativeOrder, unix.NLMSG_DONE, 0, 7, errno(-int32(unix.EINVAL))...)}, true, 1, true, unix.EINVAL},
		{"an acknowledgement", [][]byte{message(nativeOrder, unix.NLMSG_ERROR, 0, 7, errno(0)...)}, false, 0, true, errMalformed},
		{"an error without a number", [][]byte{message(nativeOrder, unix.NLMSG_ERROR, 0, 7)}, true, 0, true, errMalformed},
		{"a length beyond the end", [][]byte{tooLong, done}, true, 0, true, errMalformed},
		{"one with a length beyond the end", [][]byte{tooLong}, false, 0, true, errMalformed},
		{"an empty datagram", [][]byte{{}}, true, 0, true, errMalformed},
	}
	for _, tt := range tests {
		visits := 0
		a := diagAnswer{seq: 7, dump: tt.dump, parser: &connectionParser{order: nativeOrder}, visit: func(*Connection) { visits++ }}
		for _, b := range tt.datagrams {
			a.read(b)
		}
		if visits != tt.visits || a.complete != tt.complete || a.err != tt.err {
			t.Errorf("%s: %d visits, complete %v, %v; want %d, %v, %v", tt.name, visits, a.complete, a.err, tt.visits, tt.complete, tt.err)
		}
	}
}

func FuzzDiagAnswer(f *testing.F) {
	f.Add(message(nativeOrder, sockDiagByFamily, 0, 7, described(nativeOrder)...), true)
	f.Add(append(message(nativeOrder, sockDiagByFamily, 2, 7, described(nativeOrder)...), message(nativeOrder, unix.NLMSG_DONE, 2, 7, 0, 0, 0, 0)...), true)
	f.Add(message(nativeOrder, unix.NLMSG_ERROR, 0, 7, 0xff, 0xff, 0xff, 0xff), false)
	f.Fuzz(func(t *testing.T, b []byte, dump bool) {
		a := diagAnswer{seq: 7, dump: dump, parser: &connectionParser{order: nativeOrder}, visit: func(c *Connection) {
			if !c.Local.IsValid() || !c.Remote.IsValid() || !c.Info.Has(FieldState) || c.Info.State == Listen {
				t.Fatalf("visited: %+v", *c)
			}
			if c.Local.Addr().Is4In6() || c.Remote.Addr().Is4In6() {
				t.Fatalf("mapped: %+v", *c)
			}
		}}
		a.read(b)
		if a.err != nil && !dump && !a.complete {
			t.Fatal("waits for more after a mistake")
		}
	})
}
