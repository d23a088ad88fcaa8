package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/lab/tcpserver"
	"longhaul/internal/tcpscript"
)

// echo starts a target on an address that sends back what it gets, and ends
// its stream with the client's. It returns the address.
func echo(t *testing.T, address string) string {
	t.Helper()
	l, err := tcpscript.ListenOn(address)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	serveEcho(t, l)
	return l.Addr().String()
}

func serveEcho(t *testing.T, l net.Listener) {
	t.Cleanup(tcpserver.Serve(l, tcpserver.Echo))
}

// held is a flow that stays open.
type held struct{ *net.TCPConn }

// dialFunc connects to a relay.
type dialFunc func(context.Context) (net.Conn, error)

// hold opens a flow to a target that echoes, and sees that it does.
func hold(t *testing.T, dial dialFunc) held {
	t.Helper()
	h, err := tryHold(t.Context(), dial, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// tryHold is hold without a test, with a time for the first echo.
func tryHold(ctx context.Context, dial dialFunc, within time.Duration) (held, error) {
	c, err := dial(ctx)
	if err != nil {
		return held{}, err
	}
	h := held{c.(*net.TCPConn)}
	if err := h.ping(within); err != nil {
		h.Close()
		return held{}, err
	}
	return h, nil
}

// ping sends some bytes through and waits for their echo.
func (h held) ping(within time.Duration) error {
	h.SetDeadline(time.Now().Add(within))
	sent := []byte(time.Now().String())
	if _, err := h.Write(sent); err != nil {
		return err
	}
	got := make([]byte, len(sent))
	if n, err := io.ReadFull(h, got); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(got), err)
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("%q came back, not %q", got, sent)
	}
	return nil
}

// alive checks that the flow still works.
func (h held) alive(t *testing.T, when string) {
	t.Helper()
	if err := h.ping(patience); err != nil {
		t.Errorf("%s: a running flow: %v", when, err)
	}
}

// release ends the flow cleanly and waits for the other's end.
func (h held) release(t *testing.T) {
	t.Helper()
	h.SetDeadline(time.Now().Add(patience))
	if err := h.CloseWrite(); err != nil {
		t.Error(err)
	}
	if n, err := h.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, %v; want the end", n, err)
	}
	h.Close()
}

// expectReset opens a connection that must be reset without a byte.
func expectReset(t *testing.T, dial dialFunc, within time.Duration) {
	t.Helper()
	c, err := dial(t.Context())
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(within))
		var n int
		if n, err = c.Read(make([]byte, 1)); n > 0 {
			t.Error("got a byte, want a reset")
		}
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}
