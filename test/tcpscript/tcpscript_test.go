package tcpscript

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// direct is an environment without anything between client and target.
func direct(t *testing.T) Env {
	t.Helper()
	address := nettest.FreeAddress(t, "127.0.0.1")
	return Env{Dial: DialTo(address), Listen: ListenOn(address), Within: time.Minute}
}

const opening = "target listens\nclient connects\ntarget accepts\n"

func TestRun(t *testing.T) {
	tests := []struct{ name, script string }{
		{"echo", `
			client sends 1K   # a comment
			target expects 1K
			target sends 64K
			client expects 64K`},
		{"half-close up", `
			client sends 100
			client ends
			target expects 100, end
			target sends 1M
			target ends
			client expects 1M, end`},
		{"end without bytes", `
			client ends
			target expects end
			target closes
			client expects end`},
		{"reset after bytes", `
			target sends 64K
			target flushes
			target resets
			client expects 64K, reset`},
		{"reset somewhere in a transfer", `
			client sends 64M
			target expects 1M
			target sends 1K
			client expects 1K
			client resets
			target expects any, reset`},
		{"the writer hears of the reset first", `
			client sends 64M
			target expects 1M
			target resets
			client expects reset`},
		{"bytes in parts", `
			client sends 3
			client sends 5
			client sends 1M
			client ends
			target expects 7
			target expects 1, 1000
			target expects any, end`},
		{"silence", `
			target expects silence within 50ms
			client sends 1
			waits 10ms
			target expects 1`},
		{"function", `
			does nothing
			client closes
			target expects end`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			env := direct(t)
			env.Do = map[string]func() error{"nothing": func() error { return nil }}
			if err := MustParse(opening+tt.script).Run(t.Context(), env); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRunFails(t *testing.T) {
	tests := []struct{ name, script, want string }{
		{"end for reset", "target sends 64K\ntarget closes\nclient expects 64K, reset", `line 6, "client expects 64K, reset": got an end after 65536 bytes`},
		{"reset for end", "target sends 100\ntarget flushes\ntarget resets\nclient expects 100, end", `line 7, "client expects 100, end": got a reset after 100 bytes`},
		{"too little", "target sends 100\ntarget ends\nclient expects 101", `line 6, "client expects 101": got an end after 100 bytes`},
		{"too much", "target sends 101\ntarget ends\nclient expects 100, end", `line 6, "client expects 100, end": got bytes after 101 bytes`},
		{"nothing", "client expects 1 within 50ms", `line 4, "client expects 1 within 50ms": got nothing after 0 bytes`},
		{"no silence", "target sends 1\nclient expects silence", `line 5, "client expects silence": got bytes after 1 bytes`},
		{"no flush", "client sends 64M\nclient flushes within 50ms", `line 5, "client flushes within 50ms": bytes are still waiting to be sent`},
		{"nobody", "second accepts within 50ms", `line 4, "second accepts within 50ms": no connection arrived`},
		{"no such actor", "second sends 1", `line 4, "second sends 1": second has no connection`},
		{"twice", "client connects", `line 4, "client connects": client has a connection already`},
		{"listens twice", "target listens", `line 4, "target listens": a listener exists already`},
		{"no such function", "does magic", `line 4, "does magic": the test has no function "magic"`},
		{"failing function", "does fail", `line 4, "does fail": no luck`},
		{"after a reset", "client resets\nclient sends 1\nclient expects end", `line 6, "client expects end": set tcp `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			env := direct(t)
			env.Do = map[string]func() error{"fail": func() error { return errors.New("no luck") }}
			err := MustParse(opening+tt.script).Run(t.Context(), env)
			var f *Failure
			if !errors.As(err, &f) || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("err = %v\nwant  %s", err, tt.want)
			}
		})
	}
}

// A changed or displaced byte is detected.
func TestRunWrongBytes(t *testing.T) {
	for name, mangle := range map[string]func([]byte) []byte{
		"changed": func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"lost":    func(b []byte) []byte { return append(b[:8:8], b[16:]...) },
	} {
		t.Run(name, func(t *testing.T) {
			env := direct(t)
			env.Dial = func(ctx context.Context) (net.Conn, error) {
				l, err := ListenOn("127.0.0.1:0")(ctx)
				if err != nil {
					return nil, err
				}
				defer l.Close()
				c, err := DialTo(l.Addr().String())(ctx)
				if err != nil {
					return nil, err
				}
				other, err := l.Accept()
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { other.Close() })
				buf := make([]byte, 1000)
				fromAcceptor.fill(buf, 0)
				_, err = other.Write(mangle(buf))
				return c, err
			}
			err := MustParse("client connects\nclient expects 900").Run(t.Context(), env)
			if err == nil || !strings.Contains(err.Error(), "got wrong bytes") {
				t.Errorf("err = %v, want wrong bytes", err)
			}
		})
	}
}

// A connection may be reset before connect returns. That counts as a reset, not
// a refusal.
func TestRunResetAtOnce(t *testing.T) {
	nettest.CheckLeaks(t)
	env := direct(t)
	env.Dial = func(context.Context) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.ECONNRESET)}
	}
	if err := MustParse("client connects\nclient sends 1\nclient ends\nclient expects reset").Run(t.Context(), env); err != nil {
		t.Error(err)
	}
	err := MustParse("client connects\nclient expects 1, reset").Run(t.Context(), env)
	if err == nil || !strings.HasSuffix(err.Error(), "got a reset after 0 bytes") {
		t.Errorf("err = %v", err)
	}
}

func TestRunRefused(t *testing.T) {
	err := MustParse("client connects").Run(t.Context(), direct(t))
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("err = %v, want a refused connection", err)
	}
}

func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := MustParse("waits 1m").Run(ctx, direct(t)); !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("err = %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for script, want := range map[string]string{
		"":                              "the script has no steps",
		"# nothing\n\n":                 "the script has no steps",
		"client":                        `line 1: "client" is not a step`,
		"\nclient jumps":                `line 2: unknown verb "jumps"`,
		"client sends":                  "line 1: write: ACTOR sends SIZE",
		"client sends 0":                `line 1: invalid size "0": write a number of bytes such as 100, 64K, 1M or 2G`,
		"client sends 2000G":            `line 1: invalid size "2000G": write a number of bytes such as 100, 64K, 1M or 2G`,
		"client sends 1 within 1s":      `line 1: "sends" does not wait, so it takes no "within"`,
		"client ends now":               `line 1: "ends" takes no "now"`,
		"client expects":                `line 1: expect a size, any, end, reset or silence, not ""`,
		"client expects 1, fin":         `line 1: expect a size, any, end, reset or silence, not "fin"`,
		"client expects any":            "line 1: after any comes end or reset",
		"client expects any, 5":         "line 1: after any comes end or reset",
		"client expects end, reset":     "line 1: nothing comes after end, reset or silence",
		"client expects end within 5":   `line 1: invalid duration "5": write 500ms, 3s or 2m`,
		"client expects end within -5s": `line 1: invalid duration "-5s": write 500ms, 3s or 2m`,
		"waits":                         "line 1: write: waits DURATION",
		"waits for 5s":                  "line 1: write: waits DURATION",
		"does":                          "line 1: write: does NAME",
	} {
		if _, err := Parse(script); err == nil || err.Error() != want {
			t.Errorf("%q: err = %v, want %s", script, err, want)
		}
	}
}

func TestStream(t *testing.T) {
	whole := make([]byte, 1000)
	fromDialer.fill(whole, 0)
	for _, position := range []int64{0, 1, 7, 8, 9, 500} {
		part := make([]byte, 100)
		fromDialer.fill(part, position)
		if string(part) != string(whole[position:position+100]) {
			t.Errorf("at %d the stream differs from itself", position)
		}
	}
	other := make([]byte, 1000)
	fromAcceptor.fill(other, 0)
	if string(other[:8]) == string(whole[:8]) {
		t.Error("both directions carry the same bytes")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(opening + "client sends 64K\nclient ends\ntarget expects 64K, end within 3s\nwaits 1s\ndoes it")
	f.Add("client expects any, reset # comment")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		for _, st := range s.steps {
			again, err := Parse(st.text)
			if err != nil || len(again.steps) != 1 {
				t.Fatalf("%q parses, but not by itself: %v", st.text, err)
			}
			if st.size < 0 || st.size > maxSize || st.within < 0 {
				t.Fatalf("%q: size %d, within %v", st.text, st.size, st.within)
			}
		}
	})
}
