package handover

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kind is the type of a message.
type kind string

const (
	kindOffer   kind = "offer"
	kindReady   kind = "ready"
	kindGo      kind = "go"
	kindServing kind = "serving"
	kindYours   kind = "yours"
)

// message is one message. An offer may take several: each except the last has
// More set, and carries a descriptor for each of Sockets.
type message struct {
	Kind    kind            `json:"kind"`
	Version int             `json:"version,omitempty"`
	Sockets []socketNames   `json:"sockets,omitempty"`
	State   json.RawMessage `json:"state,omitempty"`
	More    bool            `json:"more,omitempty"`
}

type socketNames struct {
	Configured netip.AddrPort `json:"configured"`
	Bound      netip.AddrPort `json:"bound"`
	Inherited  bool           `json:"inherited,omitempty"`
	Tunnel     string         `json:"tunnel,omitempty"`
}

const (
	maxMessage       = 16 << 20
	socketsInMessage = 64 // the kernel's bound is 253 descriptors (SCM_MAX_FD)
)

// channel carries messages over a Unix stream: the length in four bytes with
// the descriptors, then JSON.
type channel struct{ *net.UnixConn }

// newChannels returns two ends. The second is for another process: it is
// blocking, closed on exec, and not registered with this process's runtime.
func newChannels() (channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return channel{}, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "handover")
	ours, err := openChannel(fds[0])
	if err != nil {
		theirs.Close()
		return channel{}, nil, err
	}
	return ours, theirs, nil
}

// openChannel takes ownership of a descriptor.
func openChannel(fd int) (channel, error) {
	f := os.NewFile(uintptr(fd), "handover")
	defer f.Close() // FileConn duplicates the descriptor
	conn, err := net.FileConn(f)
	if err != nil {
		return channel{}, err
	}
	stream, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return channel{}, errors.New("the descriptor is not a Unix socket")
	}
	return channel{stream}, nil
}

// within unblocks calls when the context ends. The returned function undoes
// that, and returns the context's cause if it has ended.
func (c channel) within(ctx context.Context) (lift func() error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() error {
		if stop() {
			return nil
		}
		_ = c.SetDeadline(time.Time{})
		return context.Cause(ctx)
	}
}

func (c channel) send(m message, files ...*os.File) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("a message of %d bytes is too long", len(body))
	}
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
			return err
		}
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	n, _, err := c.WriteMsgUnix(header, rights, nil)
	runtime.KeepAlive(files) // keep the descriptors open until here
	if err == nil {
		_, err = c.Write(append(header[n:], body...))
	}
	return err
}

// receive returns the next message and its descriptors; the caller closes them.
func (c channel) receive() (m message, files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	var header [4]byte
	control := make([]byte, unix.CmsgSpace(4*socketsInMessage))
	n, nc, flags, _, err := c.ReadMsgUnix(header[:], control)
	files, rightsErr := received(control[:nc])
	switch {
	case err != nil:
		return m, files, err
	case n == 0:
		return m, files, io.EOF
	case rightsErr != nil:
		return m, files, rightsErr
	case flags&unix.MSG_CTRUNC != 0:
		return m, files, errors.New("not every descriptor arrived: the limit of open files is too low")
	}
	if _, err := io.ReadFull(c, header[n:]); err != nil {
		return m, files, unexpected(err)
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > maxMessage {
		return m, files, fmt.Errorf("a message of %d bytes is too long", size)
	}
	body, err := io.ReadAll(io.LimitReader(c, int64(size))) // allocates only what arrives
	if err != nil {
		return m, files, err
	}
	if len(body) < int(size) {
		return m, files, io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, files, fmt.Errorf("parse a message: %w", err)
	}
	if len(files) != len(m.Sockets) {
		return m, files, fmt.Errorf("a message lists %d sockets and carries %d", len(m.Sockets), len(files))
	}
	return m, files, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// received extracts descriptors from a control message. The net package has
// already set close-on-exec on them.
func received(control []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "listener"))
		}
	}
	return files, nil
}

// expect waits for a message of one kind without descriptors.
func (c channel) expect(want kind) (state []byte, err error) {
	m, files, err := c.receive()
	for _, f := range files {
		f.Close()
	}
	if err == nil && m.Kind != want {
		err = fmt.Errorf("got message %q instead of %q", m.Kind, want)
	}
	return m.State, err
}

// gone reports whether an error means that the other process has ended.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (c channel) sendOffer(o Offer) error {
	rest := o.Sockets
	for len(rest) > 0 {
		batch := rest[:min(len(rest), socketsInMessage)]
		rest = rest[len(batch):]
		m, files := message{Kind: kindOffer, Version: protocolVersion, More: true}, []*os.File(nil)
		for _, s := range batch {
			m.Sockets = append(m.Sockets, socketNames{s.Configured, s.Bound, s.Inherited, s.Tunnel})
			files = append(files, s.File)
		}
		if err := c.send(m, files...); err != nil {
			return err
		}
	}
	return c.send(message{Kind: kindOffer, Version: protocolVersion, State: o.State})
}

// receiveOffer returns an offer, after checking that each socket is bound as
// announced.
func (c channel) receiveOffer() (o Offer, err error) {
	defer func() {
		if err != nil {
			CloseAll(o.Sockets)
			o = Offer{}
		}
	}()
	for {
		m, files, err := c.receive()
		for i, f := range files {
			n := m.Sockets[i]
			o.Sockets = append(o.Sockets, Socket{n.Configured, n.Bound, n.Inherited, n.Tunnel, f})
		}
		switch {
		case err != nil:
			return o, err
		case m.Kind != kindOffer:
			return o, fmt.Errorf("got message %q instead of an offer", m.Kind)
		case m.Version != protocolVersion:
			return o, fmt.Errorf("the running process speaks version %d of the handover, this one version %d; restart it instead", m.Version, protocolVersion)
		}
		for _, s := range o.Sockets[len(o.Sockets)-len(files):] {
			bound, err := Address(s.File)
			if err != nil {
				return o, fmt.Errorf("take over the socket of %s: %w", s.Bound, err)
			}
			if bound.Port() != s.Bound.Port() || bound.Addr().Unmap() != s.Bound.Addr().WithZone("").Unmap() {
				return o, fmt.Errorf("the socket of %s is one of %s", s.Bound, bound)
			}
		}
		if !m.More {
			o.State = m.State
			return o, nil
		}
	}
}
