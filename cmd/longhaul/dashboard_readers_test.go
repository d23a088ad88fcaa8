package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// Without a token the dashboard is for root and the relay's user, as the control
// socket is. At 1818be3 every user of the host could read every flow.
func TestDashboardReaders(t *testing.T) {
	nettest.RequireRoot(t)
	t.Parallel()
	const (
		relayUser = 65534
		another   = 65533
	)
	dir := nettest.OpenTempDir(t)
	program := filepath.Join(dir, "program") // the test's own is in a directory of root's
	self, err := os.Executable()
	nettest.Must(t, err)
	content, err := os.ReadFile(self)
	nettest.Must(t, err)
	nettest.WriteProgram(t, program, content)

	page, page6 := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "::1")
	relay := &running{Cmd: &exec.Cmd{
		Path: program, Dir: dir,
		Args: []string{
			"longhaul", "relay", "--control-socket", "off", "--listen", nettest.FreeAddress(t, "127.0.0.1"), "--forward", echoTarget(t),
			"--dashboard", page, "--dashboard", page6,
		},
		SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: relayUser, Gid: relayUser}},
	}}
	relay.start(t)
	relay.waitLog(t, "relay started")

	const remedy = "set dashboard.token_file, tls_cert and tls_key"
	for _, c := range []struct {
		name, address, path string
		user                int
		device              string // that the client binds to
		status              int
		says                string
	}{
		{"the relay's user", page, "/api/v1/overview", relayUser, "", 200, `"tunnels"`},
		{"the relay's user, IPv6", page6, "/api/v1/overview", relayUser, "", 200, `"tunnels"`},
		{"root", page, "/api/v1/overview", 0, "", 200, `"tunnels"`},
		{"root asks for the page", page, "/", 0, "", 200, "<html"},
		{"another user", page, "/api/v1/overview", another, "", 403, "is for root and the relay's user (65534), and user 65533 asks: ask as one of them, or " + remedy},
		{"another user, IPv6", page6, "/api/v1/flows", another, "", 403, "and user 65533 asks"},
		{"another user, live", page, "/api/v1/live?view=flows", another, "", 403, "and user 65533 asks"},
		{"another user asks for the page", page, "/", another, "", 403, "and user 65533 asks"},
		{"one that is not found", page, "/api/v1/overview", 0, "lo", 403, "the kernel knows no user of this host who sent this request (it may come through a forwarded port): " + remedy},
	} {
		t.Run(c.name, func(t *testing.T) {
			dialer := net.Dialer{}
			if c.device != "" {
				dialer.Control = func(_, _ string, raw syscall.RawConn) (err error) {
					_ = raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), c.device) })
					return err
				}
			}
			transport := &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
					err = nettest.AsUser(c.user, func() (err error) {
						conn, err = dialer.DialContext(ctx, network, address)
						return err
					})
					return conn, err
				},
			}
			answer, err := (&http.Client{Transport: transport, Timeout: patience}).Get(fmt.Sprintf("http://%s%s", c.address, c.path))
			nettest.Must(t, err)
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			nettest.Must(t, err)
			if answer.StatusCode != c.status || !strings.Contains(string(text), c.says) {
				t.Errorf("answered with %s: %.300s\nwant %d and %q", answer.Status, text, c.status, c.says)
			}
		})
	}
}
