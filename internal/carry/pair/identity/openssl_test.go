package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/lab/tcpserver"
	"longhaul/test/nettest"
)

// pemFiles writes a store's certificate and key for openssl.
func pemFiles(t *testing.T, s *Store) (certificate, key string) {
	t.Helper()
	c, err := s.withKey()
	nettest.Must(t, err)
	own := c.certificates[c.inUse()]
	der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	nettest.Must(t, err)
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	nettest.Must(t, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}), 0o600))
	nettest.Must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return certificate, key
}

// openssl runs openssl to its end, and returns what it prints.
func openssl(t *testing.T, stdin io.Reader, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "openssl", args...)
	cmd.Stdin = stdin
	out, _ := cmd.CombinedOutput() // its text says more than its status
	return string(out)
}

// TestOpenSSLReadsTheCertificate holds what another program sees in a certificate.
func TestOpenSSLReadsTheCertificate(t *testing.T) {
	nettest.RequireProgram(t, "openssl", "openssl")
	s := newStore(t)
	certificate, _ := pemFiles(t, s)
	text := openssl(t, nil, "x509", "-in", certificate, "-noout", "-text")
	for _, want := range []string{"Version: 3", "Signature Algorithm: (?i:ed25519)", "Public Key Algorithm: (?i:ed25519)", "CN ?= ?longhaul pair",
		"Not Before: Jan  1 00:00:00 2000 GMT", "Not After ?: Dec 31 23:59:59 9999 GMT", "TLS Web Server Authentication, TLS Web Client Authentication"} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if out := openssl(t, nil, "verify", "-check_ss_sig", "-CAfile", certificate, certificate); !strings.HasSuffix(out, ": OK\n") {
		t.Errorf("verify: %s", out)
	}
	public := openssl(t, nil, "x509", "-in", certificate, "-noout", "-pubkey")
	block, _ := pem.Decode([]byte(public))
	if block == nil {
		t.Fatalf("no public key: %s", public)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	key := own(t, s)
	if err != nil || !bytes.Equal(parsed.(ed25519.PublicKey), key[:]) {
		t.Errorf("the public key is %v, %v", parsed, err)
	}
}

// serveTLS accepts connections, sends back what comes, and returns the channel bindings.
func serveTLS(t *testing.T, s *Store) (address string, bindings <-chan string) {
	t.Helper()
	l := nettest.ListenTCP(t, "127.0.0.1:0")
	all := make(chan string, 10)
	t.Cleanup(tcpserver.Serve(l, func(conn net.Conn) {
		secure := tls.Server(conn, s.ServerTLS(nil))
		conn.SetDeadline(time.Now().Add(time.Minute))
		if err := secure.Handshake(); err != nil {
			all <- err.Error()
		} else {
			state := secure.ConnectionState()
			binding, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
			all <- fmt.Sprintf("%X %v", binding, err)
			_, _ = io.CopyN(secure, secure, int64(len(hello)))
			_ = secure.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, conn) // closing with unread bytes would reset
	}))
	return l.Addr().String(), all
}

const hello = "hello\n"

// TestOpenSSLConnects holds the server's side against openssl s_client.
func TestOpenSSLConnects(t *testing.T) {
	nettest.RequireProgram(t, "openssl", "openssl")
	nettest.CheckLeaks(t)
	a, b := newPair(t)
	address, bindings := serveTLS(t, b)
	connect := func(s *Store, args ...string) string {
		certificate, key := pemFiles(t, s)
		args = append([]string{"s_client", "-connect", address, "-cert", certificate, "-key", key, "-ign_eof",
			"-keymatexport", "EXPORTER-Channel-Binding", "-keymatexportlen", "32"}, args...)
		return openssl(t, strings.NewReader(hello), args...)
	}
	out := connect(a, "-alpn", preface.ALPN)
	binding := <-bindings
	for _, want := range []string{"New, TLSv1.3, Cipher is TLS_", "ALPN protocol: longhaul-pair/1", "Peer signature type: (?i:ed25519)", "\n" + hello} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "New Session Ticket arrived") || strings.Contains(out, "Post-Handshake New Session") {
		t.Errorf("a session ticket:\n%s", out)
	}
	// RFC 9266: both ends export the same.
	exported := regexp.MustCompile(`Keying material: ([0-9A-F]{64})`).FindStringSubmatch(out)
	if exported == nil || binding != exported[1]+" <nil>" {
		t.Errorf("openssl exports %v, the server %s", exported, binding)
	}

	stranger := newStore(t)
	for _, test := range []struct {
		name       string
		s          *Store
		args       []string
		out, bound string
	}{
		{"unknown key", stranger, []string{"-alpn", preface.ALPN}, "alert bad certificate", "unknown key: no peer has the key " + own(t, stranger).Short()},
		{"no protocol", a, nil, "alert bad certificate", "the other end does not speak longhaul-pair/1"},
		{"another protocol", a, []string{"-alpn", "h2"}, "alert no application protocol", "unsupported application protocols"},
		{"TLS 1.2", a, []string{"-alpn", preface.ALPN, "-tls1_2"}, "alert protocol version", "unsupported versions"},
	} {
		out := connect(test.s, test.args...)
		if !strings.Contains(out, test.out) {
			t.Errorf("%s: no %q in\n%s", test.name, test.out, out)
		}
		if got := <-bindings; !strings.Contains(got, test.bound) {
			t.Errorf("%s: the server says %s", test.name, got)
		}
	}
	out = openssl(t, strings.NewReader(""), "s_client", "-connect", address, "-alpn", preface.ALPN, "-ign_eof")
	if got := <-bindings; !strings.Contains(out, "alert certificate required") || !strings.Contains(got, "didn't provide a certificate") {
		t.Errorf("without certificate: %s\n%s", got, out)
	}
}

// TestOpenSSLServes holds the client's side against openssl s_server.
func TestOpenSSLServes(t *testing.T) {
	nettest.RequireProgram(t, "openssl", "openssl")
	nettest.CheckLeaks(t)
	a, b := newPair(t)
	serve := func(s *Store, args ...string) (address string) {
		certificate, key := pemFiles(t, s)
		address = nettest.FreeAddress(t, "127.0.0.1")
		cmd := exec.Command("openssl", append([]string{"s_server", "-accept", address, "-cert", certificate, "-key", key, "-Verify", "1", "-rev"}, args...)...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		nettest.Must(t, cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("s_server: %s", out.String())
			}
		})
		nettest.Eventually(t, time.Minute, func() bool {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				conn.Close()
			}
			return err == nil
		}, func() string { return "openssl s_server listens" })
		return address
	}
	talk := func(address string) (string, error) {
		conn, err := net.Dial("tcp", address)
		nettest.Must(t, err)
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		secure := tls.Client(conn, clientTLS(t, a, "b"))
		if _, err := io.WriteString(secure, hello); err != nil {
			return "", err
		}
		reply := make([]byte, len(hello))
		_, err = io.ReadFull(secure, reply)
		return string(reply), err
	}
	if reply, err := talk(serve(b, "-alpn", preface.ALPN)); reply != "olleh\n" || err != nil {
		t.Errorf("reply %q, %v", reply, err)
	}
	if _, err := talk(serve(newStore(t), "-alpn", preface.ALPN)); !IsKeyUnknown(err) {
		t.Errorf("another key: %v", err)
	}
	if _, err := talk(serve(b)); err == nil || !strings.Contains(err.Error(), "does not speak longhaul-pair/1") {
		t.Errorf("another protocol: %v", err)
	}
	if _, err := talk(serve(b, "-alpn", preface.ALPN, "-tls1_2")); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
}
