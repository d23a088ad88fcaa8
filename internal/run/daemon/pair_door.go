package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair"
	"longhaul/internal/sys/localsocket"
)

// After an upgrade the old process keeps its flows, and near relays go on to make
// lanes for them. The new process accepts these connections. Their preface names
// the old process's instance, so the new one passes them on through the old one's
// door: a Unix socket that takes descriptors.

// olderPair is the door of an older process with flows of pairs.
type olderPair struct {
	Instance string `json:"instance"` // in hexadecimal
	Socket   string `json:"socket"`
	Tells    bool   `json:"tells_ending,omitempty"` // at its end, to who asks for it
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
	all := p.endings.living(p.older.list())
	if p.node == nil || len(p.current.far) == 0 && len(all) == 0 {
		return all, nil
	}
	if p.door == nil {
		instance := pair.NumberText(p.node.Instance())
		name := fmt.Sprintf("@longhaul-pair-%d-%s", os.Getpid(), instance)
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
		if err != nil {
			return nil, fmt.Errorf("open the way for connections of paired relays: %w", err)
		}
		p.door = &pairDoor{olderPair{instance, name, true}, l}
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
		if err == nil && fd < 0 {
			p.running.Go(func() { p.endings.admit(c) })
			continue
		}
		_ = c.Close()
		if err != nil {
			p.notPassed(err)
			continue
		}
		if t := p.farAt(fd); t != nil {
			p.serve(fd, first, t)
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
// this user or of root; -1: the process asks for endings.
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
	if n == 1 && body[0] == doorFollow {
		return -1, nil, nil
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

// olderPairs are the doors of older processes, the oldest first.
type olderPairs struct {
	mu  sync.Mutex
	all []olderPair
}

func (o *olderPairs) remember(all []olderPair) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = slices.Clone(all)
}

func (o *olderPairs) list() []olderPair {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

// take passes a connection on to the process that its preface names. It returns
// false if this host has no such process, or it has ended. Then the caller keeps the
// connection.
func (o *olderPairs) take(instance uint64, fd int, first []byte) bool {
	all, name := o.list(), pair.NumberText(instance)
	i := slices.IndexFunc(all, func(one olderPair) bool { return one.Instance == name })
	if i < 0 {
		return false
	}
	err := pass(all[i].Socket, fd, first)
	if errors.Is(err, syscall.ECONNREFUSED) { // it has ended
		o.mu.Lock()
		o.all = slices.DeleteFunc(o.all, func(one olderPair) bool { return one.Instance == name })
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
	c, err := dialDoor(socket)
	if err != nil {
		return err
	}
	defer c.Close()
	_, _, err = c.WriteMsgUnix(append([]byte{doorVersion}, first...), unix.UnixRights(fd), nil)
	return err
}

// dialDoor connects to a door. The connection has a deadline.
func dialDoor(socket string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	peer, err := localsocket.Peer(c)
	if err == nil && int(peer.Uid) != os.Geteuid() { // somebody else took the name
		err = fmt.Errorf("user %d serves %s", peer.Uid, socket)
	}
	if err == nil {
		err = c.SetDeadline(time.Now().Add(doorTime))
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
