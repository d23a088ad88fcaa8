package integrity

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// In these tests something never arrives. The connections are in memory, and
// time is synctest's.

// wire is one direction of a connection in memory, of any length.
type wire struct {
	mu     sync.Mutex
	change sync.Cond
	b      []byte
	offset int64
	pass   func(offset int64, b []byte) []byte // nil: everything passes
	ended  bool
}

// wireEnd is one end of a connection in memory.
type wireEnd struct {
	in, out  *wire
	deadline time.Time // of reading, under in.mu
}

// wired makes a connection; up and down filter the bytes to the server and
// back.
func wired(up, down func(offset int64, b []byte) []byte) (client, server *wireEnd) {
	a, b := &wire{pass: up}, &wire{pass: down}
	a.change.L, b.change.L = &a.mu, &b.mu
	return &wireEnd{in: b, out: a}, &wireEnd{in: a, out: b}
}

func (e *wireEnd) Read(b []byte) (int, error) {
	w := e.in
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case len(w.b) > 0:
			n := copy(b, w.b)
			w.b = w.b[n:]
			return n, nil
		case w.ended:
			return 0, io.EOF
		case !e.deadline.IsZero() && !time.Now().Before(e.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		w.change.Wait()
	}
}

func (e *wireEnd) Write(b []byte) (int, error) {
	w := e.out
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return 0, net.ErrClosed
	}
	passed := b
	if w.pass != nil {
		passed = w.pass(w.offset, b)
	}
	w.offset += int64(len(b))
	w.b = append(w.b, passed...)
	w.change.Broadcast()
	return len(b), nil
}

func (e *wireEnd) Close() error {
	for _, w := range []*wire{e.in, e.out} {
		w.mu.Lock()
		w.ended = true
		w.change.Broadcast()
		w.mu.Unlock()
	}
	return nil
}

func (e *wireEnd) SetReadDeadline(t time.Time) error {
	w := e.in
	w.mu.Lock()
	defer w.mu.Unlock()
	e.deadline = t
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.change.Broadcast()
		})
	}
	return nil
}

func (e *wireEnd) SetWriteDeadline(time.Time) error { return nil } // writing never blocks
func (e *wireEnd) SetDeadline(t time.Time) error    { return e.SetReadDeadline(t) }

// inSilence runs a test in synctest with the real waits.
func inSilence(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	long := wait
	defer func() { wait = long }()
	wait = realWaits
	synctest.Test(t, test)
}

// walkOn checks a chain that begins with a connection.
func walkOn(t *testing.T, conn Conn) (Chain, time.Duration) {
	t.Helper()
	begin := time.Now()
	chain := Walk{
		Self: Identity{Host: "here", Instance: "here"}, Forward: "b:1", Next: NextRelay, Key: testKey, Bytes: DefaultBytes, Memory: NewMemory(),
		Dial: func(context.Context) (Conn, netip.AddrPort, error) {
			return conn, netip.MustParseAddrPort("192.0.2.1:1"), nil
		},
	}.Run(t.Context())
	return chain, time.Since(begin)
}

// Some bytes pass and then no more, as if full segments vanished.
func TestStalled(t *testing.T) {
	for _, direction := range []string{upwards, downwards} {
		t.Run(direction, func(t *testing.T) {
			inSilence(t, func(t *testing.T) {
				little := func(offset int64, b []byte) []byte { return b[:min(max(0, 5000-offset), int64(len(b)))] }
				var passes [2]func(int64, []byte) []byte
				passes[map[string]int{upwards: 0, downwards: 1}[direction]] = little
				here, ofB := wired(nil, nil)
				fromB, ofC := wired(passes[0], passes[1])
				fromC, _ := wired(nil, nil) // to a silent target without a fault
				var serving sync.WaitGroup
				serve := func(s Server, f Flow) {
					serving.Go(func() {
						defer f.Client.Close()
						defer f.Target.Close()
						f.Since = time.Now()
						s.Serve(t.Context(), f)
					})
				}
				serve(server("b", NextRelay), Flow{Client: ofB, Target: fromB})
				serve(server("c", NextTarget), Flow{Client: ofC, Target: fromC})
				chain, took := walkOn(t, here)
				serving.Wait()
				f := chain.Fault
				if f == nil || f.Reason != Stalled || f.Direction != direction || !strings.HasPrefix(f.From, "b ") {
					t.Fatalf("the fault is %+v, want %s of %s behind b", f, Stalled, direction)
				}
				if most := wait.stalled + wait.settled; took < wait.stalled || took > most {
					t.Errorf("it was found after %v, want %v to %v", took, wait.stalled, most)
				}
				t.Log(f.Text)
			})
		})
	}
}

// Another program than a relay is detected after the reply timeout.
func TestOtherPrograms(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serve  func(c *wireEnd)
		reason Reason
		text   string
	}{
		{"it echoes", func(c *wireEnd) { _, _ = io.Copy(c, c) }, Foreign, "not a relay with this key"},
		{"it greets", func(c *wireEnd) {
			_, _ = io.WriteString(c, "220 \x1b[2Jhello\r\n")
			_, _ = io.Copy(io.Discard, c)
		}, Foreign, `"220 ?[2Jhello??"`},
		{"it says nothing", func(c *wireEnd) { _, _ = io.Copy(io.Discard, c) }, Silent, "does not answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inSilence(t, func(t *testing.T) {
				here, there := wired(nil, nil)
				go tt.serve(there)
				chain, took := walkOn(t, here)
				f := chain.Fault
				if chain.State != Broken || f == nil || f.Reason != tt.reason || f.Hop != 1 || f.From != "here" || !strings.Contains(f.Text, tt.text) || f.Hint == "" {
					t.Fatalf("the fault is %+v, want %s at hop 1: %q", f, tt.reason, tt.text)
				}
				if took != wait.reply {
					t.Errorf("it was found after %v, want %v", took, wait.reply)
				}
			})
		})
	}
}
