package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"longhaul/internal/carry/pair/wire"
)

// Conn is one connection to or from a relay. Reads and writes are of TLS after the handshake.
type Conn struct {
	Hello wire.Hello // of the other end

	tcp    *net.TCPConn
	stream io.ReadWriter
	tally  *tally
	detach func() bool // from the context
}

// newConn is a connection that ends with ctx.
func newConn(ctx context.Context, tcp *net.TCPConn, t *tally) *Conn {
	_ = tcp.SetLinger(0) // thousands of ports would stay in TIME_WAIT
	return &Conn{tcp: tcp, stream: tcp, tally: t, detach: context.AfterFunc(ctx, func() { tcp.Close() })}
}

// handshake goes through TLS and greets, within a time.
func (c *Conn) handshake(conn *tls.Conn, greet func() error) error {
	_ = c.tcp.SetDeadline(time.Now().Add(handshakeTimeout))
	if err := conn.Handshake(); err != nil {
		return err
	}
	c.stream = conn
	if err := greet(); err != nil {
		return err
	}
	return c.tcp.SetDeadline(time.Time{})
}

// Close resets the connection.
func (c *Conn) Close() error {
	c.detach()
	return c.tcp.Close()
}

func (c *Conn) Read(b []byte) (int, error) { return c.stream.Read(b) }

func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.stream.Write(b)
	c.tally.bytes.Add(int64(n))
	return n, err
}

// Send sends messages of the control connection.
func (c *Conn) Send(messages ...wire.Message) error {
	var b []byte
	for _, m := range messages {
		b = m.Append(b)
	}
	c.tally.messages.Add(int64(len(messages)))
	_, err := c.Write(b)
	return err
}

// Data sends bytes of a flow from an offset on.
func (c *Conn) Data(offset uint64, b []byte) error { return c.frame(0, offset, b) }

func (c *Conn) frame(flags byte, offset uint64, b []byte) error {
	framed := make([]byte, wire.HeadSize+len(b))
	wire.Frame{Type: wire.FrameData, Flags: flags, Length: len(b), Offset: offset}.Put(framed)
	copy(framed[wire.HeadSize:], b)
	c.tally.messages.Add(1)
	_, err := c.Write(framed)
	return err
}

// Open opens a flow on the lane, with its first bytes.
func (c *Conn) Open(o wire.Open, first []byte) error {
	c.tally.messages.Add(1)
	if _, err := c.Write(o.Append(nil)); err != nil || len(first) == 0 {
		return err
	}
	return c.Data(0, first)
}

// Discard reads until the connection ends, in a goroutine.
func (c *Conn) Discard() { go func() { _, _ = io.Copy(io.Discard, onlyReader{c}) }() }

// Answer reads messages until the connection ends, in a goroutine, and answers each PING, so
// that the relay keeps the connection.
func (c *Conn) Answer() { go func() { _ = c.answer(func(wire.Message) error { return nil }) }() }

func (c *Conn) answer(handle func(wire.Message) error) error {
	for {
		m, err := c.NextMessage()
		if err == nil && m.Type == wire.MessagePing {
			err = c.Send(wire.Message{Type: wire.MessagePong, Bytes: m.Bytes})
		} else if err == nil {
			err = handle(m)
		}
		if err != nil {
			return err
		}
	}
}

type onlyReader struct{ io.Reader }

// NextFrame reads the head of a lane's frame and what follows it.
func (c *Conn) NextFrame() (f wire.Frame, body []byte, err error) {
	var head [wire.HeadSize]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return f, nil, err
	}
	if f, err = wire.ParseFrame(head[:]); err != nil {
		return f, nil, err
	}
	body = make([]byte, f.Length)
	_, err = io.ReadFull(c, body)
	return f, body, err
}

// Receive reads frames of a lane until one of a type has come, or until so much of the stream
// has. It returns the position. Silence for so long is no error, and the connection is of no
// further use to read.
func (c *Conn) Receive(want wire.FrameType, most uint64, quiet time.Duration) (position uint64, err error) {
	for position < most {
		_ = c.tcp.SetReadDeadline(time.Now().Add(quiet))
		f, _, err := c.NextFrame()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return position, nil
		case err != nil:
			return position, err
		case f.Type == wire.FrameData && !f.Compressed():
			position = max(position, f.Offset+uint64(f.Length))
		}
		if f.Type == want {
			break
		}
	}
	return position, c.tcp.SetReadDeadline(time.Time{})
}

// NextMessage reads a message of a control connection.
func (c *Conn) NextMessage() (wire.Message, error) {
	return wire.ReadMessage(c, new([]byte))
}

// blockSize is how much a flood sends at a time.
const blockSize = 32 << 10

// flood sends what next appends, as often as left says, until the connection fails or ctx
// ends.
func (c *Conn) flood(ctx context.Context, left *int, next func([]byte) []byte) error {
	var b []byte
	for *left > 0 && ctx.Err() == nil {
		if err := c.block(&b, left, next); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// block sends one block of a flood.
func (c *Conn) block(b *[]byte, left *int, next func([]byte) []byte) error {
	out, n := (*b)[:0], 0
	for len(out) < blockSize && n < *left {
		out = next(out)
		n++
	}
	*b, *left = out, *left-n
	c.tally.messages.Add(int64(n))
	_, err := c.Write(out)
	return err
}
