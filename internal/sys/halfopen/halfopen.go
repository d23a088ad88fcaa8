// Package halfopen asks servers whether they accept connections, and does them no harm: the
// server's kernel answers the SYN, and gets RST in place of the ACK that would complete the
// handshake. So the server's program never sees a connection. Databases count one that ends before
// its login as an error of its host, and block the host after some (MariaDB's max_connect_errors);
// sshd logs each.
//
// Linux delays the ACK of a handshake by up to 200 ms if TCP_QUICKACK is off before the connect,
// since data may carry it. A close with a zero linger in that time sends RST alone. A process that
// gets no processor for so long sends the ACK before RST.
package halfopen

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options are optional.
type Options struct {
	Local   netip.AddrPort       // that the connection is bound to
	Prepare func(fd int) error   // sets the socket up before it is bound
	Seen    func(c *net.TCPConn) // looks at the socket once the server has answered; it must not wait
}

// Ask returns how long the server at an address took to answer, or why it accepts no connection.
func Ask(ctx context.Context, address string, o Options) (took time.Duration, err error) {
	d := net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var prepared error
		err := c.Control(func(fd uintptr) { prepared = o.prepare(int(fd)) })
		return errors.Join(err, prepared)
	}}
	d.SetMultipathTCP(false)
	if o.Local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(o.Local)
	}
	began := time.Now()
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	took = time.Since(began)
	if o.Seen != nil {
		o.Seen(conn.(*net.TCPConn))
	}
	return took, nil
}

// Hold has a socket that does not connect yet keep the ACK of its handshake back, and send RST in its
// place when it is closed.
func Hold(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
}

// Complete has a socket that Hold has prepared send that ACK, and close as any other.
func Complete(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, new(unix.Linger))
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
}

func (o *Options) prepare(fd int) error {
	if err := Hold(fd); err != nil {
		return err
	}
	if o.Prepare == nil {
		return nil
	}
	return o.Prepare(fd)
}
