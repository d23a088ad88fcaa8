package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/localsocket"
)

// After an upgrade the old process keeps its flows, and near relays go on to make
// lanes for them. The new process accepts these connections. Their preface names
// the old process's instance, so the new one passes them on through the old one's
// door: a Unix socket that takes descriptors.

// olderPair is the door of an older process with flows of pairs.
type olderPair struct {
	Instance string `json:"instance"` // in hexadecimal
	Socket   string `json:"socket"`
}

// doorVersion is the first byte of a message; what was read of the connection
// follows, and its descriptor comes beside.
const doorVersion = 1

// maxPassed bounds a message: what was read of a connection before its preface was
// understood.
const maxPassed = 128 << 10

// doorTime bounds each step of passing a connection on.
const doorTime = 2 * time.Second

// pairDoor takes the connections that a successor passes on.
type pairDoor struct {
	olderPair
	listener *net.UnixListener
}

// bequeath opens this process's door, and returns it with those of older
// processes.
func (p *pairs) bequeath() ([]olderPair, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.older.list()
	if p.node == nil || len(p.current.far) == 0 {
		return all, nil
	}
	if p.door == nil {
		instance := instanceText(p.node.Instance())
		name := fmt.Sprintf("@longhaul-pair-%d-%s", os.Getpid(), instance)
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
		if err != nil {
			return nil, fmt.Errorf("open the way for connections of paired relays: %w", err)
		}
		p.door = &pairDoor{olderPair{instance, name}, l}
		p.running.Go(func() { p.admit(l) })
	}
	return append(all, p.door.olderPair), nil
}

func (d *pairDoor) close() { _ = d.listener.Close() }

// admit serves the door.
func (p *pairs) admit(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			p.notPassed(err)
			time.Sleep(acceptPause)
			continue
		}
		fd, first, err := receivePassed(c)
		_ = c.Close()
		if err != nil {
			p.notPassed(err)
			continue
		}
		if t := p.farAt(fd); t != nil {
			p.node.Serve(fd, first, t)
		} else {
			_ = unix.Close(fd)
		}
	}
}

func (p *pairs) notPassed(err error) {
	p.lines.Log(slog.LevelWarn, "cannot take a connection from the new process", nil, slog.Any("error", err))
}

const acceptPause = 100 * time.Millisecond // after descriptors ran out

// farAt returns the far tunnel that listens where a connection came in.
func (p *pairs) farAt(fd int) *farTunnel {
	at := localAddress(fd)
	p.mu.Lock()
	defer p.mu.Unlock()
	var found *farTunnel
	for _, t := range p.current.far {
		for _, l := range t.admits.Load().listen {
			if l.Ports.First != at.Port() {
				continue
			}
			if l.Addr == at.Addr() {
				return t
			}
			found = t
		}
	}
	return found
}

func localAddress(fd int) netip.AddrPort {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// receivePassed takes one connection of a message, if it is from a process of
// this user or of root.
func receivePassed(c *net.UnixConn) (fd int, first []byte, err error) {
	peer, err := localsocket.Peer(c)
	if err != nil {
		return -1, nil, err
	}
	if uid := int(peer.Uid); !localsocket.Trusted(uid) {
		return -1, nil, fmt.Errorf("user %d is not this process's", uid)
	}
	if err := c.SetDeadline(time.Now().Add(doorTime)); err != nil {
		return -1, nil, err
	}
	body, rights := make([]byte, maxPassed), make([]byte, unix.CmsgSpace(4))
	n, nr, flags, _, err := c.ReadMsgUnix(body, rights)
	if err != nil {
		return -1, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:nr])
	if err != nil || len(messages) != 1 {
		return -1, nil, errors.New("the message has no descriptor")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, nil, errors.New("the message has no descriptor")
	}
	if n == 0 || body[0] != doorVersion || flags&unix.MSG_TRUNC != 0 {
		_ = unix.Close(fds[0])
		return -1, nil, errors.New("the message is of another version")
	}
	return fds[0], body[1:n], nil
}

// olderPairs are the doors of older processes.
type olderPairs struct {
	mu  sync.Mutex
	all map[uint64]string // socket by instance
}

func (o *olderPairs) remember(all []olderPair) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = map[uint64]string{}
	for _, one := range all {
		if instance, err := strconv.ParseUint(one.Instance, 16, 64); err == nil {
			o.all[instance] = one.Socket
		}
	}
}

func (o *olderPairs) list() (all []olderPair) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for instance, socket := range o.all {
		all = append(all, olderPair{instanceText(instance), socket})
	}
	return all
}

func instanceText(instance uint64) string { return fmt.Sprintf("%016x", instance) }

// take passes a connection on to the process that its preface names. It returns
// false if this host has no such process, or it has ended. Then the caller keeps the
// connection.
func (o *olderPairs) take(instance uint64, fd int, first []byte) bool {
	o.mu.Lock()
	socket := o.all[instance]
	o.mu.Unlock()
	if socket == "" {
		return false
	}
	err := pass(socket, fd, first)
	if errors.Is(err, syscall.ECONNREFUSED) { // it has ended
		o.mu.Lock()
		delete(o.all, instance)
		o.mu.Unlock()
	}
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// pass sends a descriptor through a door.
func pass(socket string, fd int, first []byte) error {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer c.Close()
	peer, err := localsocket.Peer(c)
	if err != nil {
		return err
	}
	if int(peer.Uid) != os.Geteuid() { // somebody else took the name
		return fmt.Errorf("user %d serves %s", peer.Uid, socket)
	}
	if err := c.SetDeadline(time.Now().Add(doorTime)); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(append([]byte{doorVersion}, first...), unix.UnixRights(fd), nil)
	return err
}
