//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// A page that had its own name lead to the relay reads no metrics; Prometheus does,
// by address and by the relay's names. At 1818be3 every name was answered.
func TestMetricsNames(t *testing.T) {
	t.Parallel()
	hostname, err := os.Hostname()
	nettest.Must(t, err)
	short, _, _ := strings.Cut(hostname, ".")
	page, file := nettest.FreeAddress(t, "127.0.0.1"), filepath.Join(t.TempDir(), "longhaul.yaml")
	listen, target := nettest.FreeAddress(t, "127.0.0.1"), echoTarget(t)
	_, port, err := net.SplitHostPort(page)
	nettest.Must(t, err)
	write := func(names string) {
		t.Helper()
		nettest.Must(t, os.WriteFile(file, fmt.Appendf(nil, "control_socket: off\nhttp_listen: %q\n%stunnels: [{name: to-b, listen: %q, forward: %q}]\n",
			page, names, listen, target), 0o600))
	}
	write("")
	relay := startAs(t, "longhaul", nil, nil, "relay", "-c", file)
	relay.waitLog(t, "relay started")
	ask := func(path, host string, want int) {
		t.Helper()
		c, err := net.Dial("tcp", page)
		nettest.Must(t, err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		if host != "" {
			host = "Host: " + host + "\r\n"
		}
		fmt.Fprintf(c, "GET %s HTTP/1.0\r\n%s\r\n", path, host)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		nettest.Must(t, err)
		text, err := io.ReadAll(answer.Body)
		nettest.Must(t, err)
		if answer.StatusCode != want || want == http.StatusMisdirectedRequest && !strings.Contains(string(text), "http_names") {
			t.Errorf("%s of %q is answered with %s: %.200s", path, host, answer.Status, text)
		}
	}
	for _, host := range []string{page, "localhost:" + port, hostname, strings.ToUpper(short) + ".:" + port, "192.0.2.1"} {
		ask("/metrics", host, http.StatusOK)
	}
	for _, host := range []string{"attacker.example:" + port, short + ".attacker.example", "relay-a.example.net", ""} {
		ask("/metrics", host, http.StatusMisdirectedRequest)
	}
	for _, host := range []string{"attacker.example", "", page} { // as load balancers ask
		ask("/healthz", host, http.StatusOK)
		ask("/readyz/to-b", host, http.StatusOK)
	}
	write("http_names: Relay-A.example.net\n")
	nettest.Must(t, relay.Process.Signal(syscall.SIGHUP))
	relay.waitLog(t, "msg=reloaded")
	ask("/metrics", "relay-a.example.net:"+port, http.StatusOK)
	ask("/metrics", "attacker.example", http.StatusMisdirectedRequest)
}
