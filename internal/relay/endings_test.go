package relay

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"longhaul/internal/nettest"
)

// The sizes at which endings are tested: nothing, one byte, what is copied,
// what is spliced, and more than the sockets between hold.
var sizes = []int{0, 1, 1000, smallRead, smallRead + 1, 300_000, 5_000_000}

func TestTargetResetAfterBytes(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, n := range sizes {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			g := newRig(t, nil)
			c, s := g.pair()
			data := pattern(n)
			done := make(chan error, 1)
			go func() {
				_, err := s.Write(data)
				if err == nil {
					err = awaitSent(s)
				}
				s.SetLinger(0)
				s.Close()
				done <- err
			}()
			expect(t, c, data)
			expectReset(t, c)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if r := g.expectReason(EndTargetReset); r.BytesDown != int64(n) {
				t.Errorf("%d bytes down recorded, want %d", r.BytesDown, n)
			}
		})
	}
}

func TestClientResetAfterBytes(t *testing.T) {
	nettest.CheckLeaks(t)
	for _, n := range sizes {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			g := newRig(t, nil)
			c, s := g.pair()
			data := pattern(n)
			done := make(chan error, 1)
			go func() {
				_, err := c.Write(data)
				if err == nil {
					err = awaitSent(c)
				}
				c.SetLinger(0)
				c.Close()
				done <- err
			}()
			expect(t, s, data)
			expectReset(t, s)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			g.expectReason(EndClientReset)
		})
	}
}

func TestTargetRefused(t *testing.T) {
	nettest.CheckLeaks(t)
	g := newRig(t, nil)
	g.target.Close()
	if c, err := tryDial(g.addr); err == nil {
		defer c.Close()
		expectReset(t, c)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err) // a reset that overtakes the end of Dial is as good
	}
	r := g.expectReason(EndTargetRefused)
	if r.Err == nil {
		t.Error("the record has no error")
	}
}

func TestHalfCloseUpWithReplyAfter(t *testing.T) {
	nettest.CheckLeaks(t)
	halfClose(t, false)
}

func TestHalfCloseDownWithLaterData(t *testing.T) {
	nettest.CheckLeaks(t)
	halfClose(t, true)
}

func halfClose(t *testing.T, targetFirst bool) {
	for _, n := range sizes {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			g := newRig(t, nil)
			first, second := g.pair()
			if targetFirst {
				first, second = second, first
			}
			data := pattern(n)
			send := func(c *net.TCPConn) {
				if _, err := c.Write(data); err != nil {
					t.Error(err)
				}
				if err := c.CloseWrite(); err != nil {
					t.Error(err)
				}
			}
			go send(first)
			expect(t, second, data)
			expectEnd(t, second)
			go send(second)
			expect(t, first, data)
			expectEnd(t, first)
			r := g.expectReason(EndClean)
			if r.Err != nil || r.BytesUp != int64(n) || r.BytesDown != int64(n) {
				t.Errorf("record says %d up, %d down, %v", r.BytesUp, r.BytesDown, r.Err)
			}
		})
	}
}
