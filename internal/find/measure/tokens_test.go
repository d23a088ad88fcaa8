package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

const goodSecret = "0123456789abcdef"

func TestReadTokens(t *testing.T) {
	got, err := ReadTokens(strings.NewReader("# ours\n\n site-a " + goodSecret + "\nsite_b\t" + goodSecret + "x \n"))
	must(t, err)
	if want := []Token{{"site-a", goodSecret}, {"site_b", goodSecret + "x"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for text, want := range map[string]string{
		"":                              "missing token",
		"# a " + goodSecret:             "missing token",
		"a":                             "line 1 is not a name and a secret",
		"a " + goodSecret + " b":        "line 1 is not",
		"\na short":                     "line 2: the secret of a has 5 bytes",
		"a " + strings.Repeat("x", 257): "has 257 bytes",
		"a/b " + goodSecret:             "a name has up to 64 letters",
		strings.Repeat("a", 65) + " " + goodSecret: "a name has up to 64 letters",
		"a " + goodSecret + "\na " + goodSecret:    "line 2: there is another a",
		manyTokens(1001):                           "more than 1000 tokens",
	} {
		if _, err := ReadTokens(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func manyTokens(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "a%d %s\n", i, goodSecret)
	}
	return b.String()
}

func FuzzReadTokens(f *testing.F) {
	f.Add("# ours\nsite-a " + goodSecret + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		tokens, err := ReadTokens(strings.NewReader(text))
		if err == nil && (len(tokens) == 0 || len(tokens) > maxTokens) {
			t.Errorf("%d tokens", len(tokens))
		}
		for _, token := range tokens {
			if !goodTokenName(token.Name) || len(token.Secret) < minSecret {
				t.Errorf("%q is a token", token)
			}
		}
	})
}

// TestTokens: those who show one are served, one at a time for each.
func TestTokens(t *testing.T) {
	t.Parallel()
	a, b := Token{"a", goodSecret + "a"}, Token{"b", goodSecret + "b"}
	address, ended := serve(t, a, b)

	for _, test := range []struct {
		shown Token
		want  string
	}{
		{Token{}, "it shows no token, and --tokens wants one"},
		{Token{"a", b.Secret}, "its token is none of --tokens"},
		{Token{"c", a.Secret}, "its token is none of --tokens"},
		{Token{"a", ""}, "its token is none of --tokens"},
	} {
		_, err := Run(t.Context(), address, Options{Bytes: 1000, Token: test.shown})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.shown, err, test.want)
		}
		if err := <-ended; err == nil || err.Error() != test.want {
			t.Errorf("%q: the server says %v, want %q", test.shown, err, test.want)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{}, 1000)
	first := make(chan error, 1)
	go func() {
		_, err := Run(ctx, address, Options{Duration: time.Hour, Token: a, PacingBps: testRate, Interval: 20 * time.Millisecond, Report: func(Interval) { started <- struct{}{} }})
		first <- err
	}()
	<-started
	if _, err := Run(t.Context(), address, Options{Bytes: 1000, Token: a}); err == nil || !strings.Contains(err.Error(), ErrBusy.Error()) {
		t.Errorf("a second test of the same token: %v", err)
	}
	_, err := Run(t.Context(), address, Options{Bytes: 1_000_000, Streams: 3, Token: b})
	must(t, err)
	must(t, <-ended)
	cancel()
	<-first
	if err := <-ended; err == nil {
		t.Error("the first test was interrupted, and ended well")
	}
	// A server that asks for none is served by a client that has one.
	open, ended := serve(t)
	_, err = Run(t.Context(), open, Options{Bytes: 1000, Token: a})
	must(t, err)
	must(t, <-ended)
}

// TestReplay: what showed a token once does not show it again.
func TestReplay(t *testing.T) {
	t.Parallel()
	token := Token{"a", goodSecret}
	address, ended := serve(t, token)
	k := newCookie()
	var heard []byte
	for try := range 2 {
		conn, err := net.Dial("tcp", address)
		must(t, err)
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = conn.Write(k[:])
		must(t, err)
		readStates(t, conn, paramExchange)
		must(t, writeMessage(conn, Options{Bytes: 1000, Token: token}.withDefaults().parameters()))
		readStates(t, conn, showToken)
		var asked challenge
		_, err = io.ReadFull(conn, asked[:])
		must(t, err)
		want := serverError
		if try == 0 {
			heard, want = token.answer(asked, k), createStreams
		}
		_, err = conn.Write(heard)
		must(t, err)
		readStates(t, conn, want)
		conn.Close()
		if err := <-ended; err == nil {
			t.Error("a test without streams ended well")
		}
	}
}

func readStates(t *testing.T, conn net.Conn, want ...state) {
	t.Helper()
	for _, w := range want {
		got, err := readState(conn)
		must(t, err)
		if got != w {
			t.Fatalf("state %d, want %d", got, w)
		}
	}
}

// TestIperf3HasNoToken: an ordinary client learns that it is not authorized.
func TestIperf3HasNoToken(t *testing.T) {
	t.Parallel()
	program := nettest.RequireProgram(t, "iperf3", "iperf3")
	address, ended := serve(t, Token{"a", goodSecret})
	port := netip.MustParseAddrPort(address).Port()
	out, err := exec.Command(program, "-c", "127.0.0.1", "-p", fmt.Sprint(port), "-t", "1").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("test authorization failed")) {
		t.Errorf("%v\n%s", err, out)
	}
	if err := <-ended; err == nil || err.Error() != errNoToken.Error() {
		t.Errorf("the server says %v", err)
	}
}

// The secret is in nothing that is sent.
func TestSecretStays(t *testing.T) {
	b, err := json.Marshal(Options{Token: Token{"a", goodSecret}}.withDefaults().parameters())
	must(t, err)
	if bytes.Contains(b, []byte(goodSecret)) {
		t.Errorf("the secret is in what is sent: %s", b)
	}
}
