//go:build linux

package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"longhaul/test/nettest"
)

// TestStopUnderSystemd: systemd would start the relay again, so it refuses to stop.
func TestStopUnderSystemd(t *testing.T) {
	t.Parallel()
	path, next := notifySocket(t)
	socket := filepath.Join(filepath.Dir(path), "s")
	listen := nettest.FreeAddress(t, "127.0.0.1")
	r := startAs(t, "longhaul", []string{"NOTIFY_SOCKET=" + path}, nil,
		"relay", "--listen", listen, "--forward", echoTarget(t), "--control-socket", socket)
	next("READY=1")
	var out bytes.Buffer
	status := run(&env{ctx: t.Context(), args: []string{"stop", "--control-socket", socket}, stdin: strings.NewReader(""),
		stdout: &out, stderr: &out, getenv: os.Getenv})
	if want := regexp.MustCompile(`^longhaul: systemd runs this relay as .*\nlonghaul: hint: systemctl stop .*\n$`); status != exitFailure || !want.MatchString(out.String()) {
		t.Errorf("status %d, %q", status, out.String())
	}
	talk(t, listen, "serves on")
	r.Process.Signal(syscall.SIGTERM)
	next("STOPPING=1")
}

// TestStopInTerminal: a terminal shows the flows left and the time until their reset.
func TestStopInTerminal(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	listen := nettest.FreeAddress(t, "127.0.0.1")
	startAs(t, "longhaul", nil, nil,
		"relay", "--listen", listen, "--forward", echoTarget(t), "--control-socket", socket)
	var held *net.TCPConn
	var err error
	nettest.Eventually(t, patience, func() bool {
		held, err = dial(listen)
		return err == nil
	}, func() string { return "the relay accepts: " + err.Error() })
	defer held.Close()
	if err := echoes(held); err != nil {
		t.Fatal(err)
	}
	p := openTerminal(t)
	p.run(t, "longhaul", "stop", "--drain-timeout", "90", "--control-socket", socket)
	shows := func(want string) {
		t.Helper()
		re := regexp.MustCompile(want)
		nettest.Eventually(t, patience, func() bool { return re.MatchString(escapes.ReplaceAllString(p.text(), "")) },
			func() string { return "the terminal shows " + want + "; it has " + p.text() })
	}
	shows(`\r1 flow left, reset in [78]\ds`)
	held.Close()
	if err := <-p.ended; err != nil {
		t.Errorf("stop ended with %v: %s", err, p.text())
	}
	shows(`process \d+ stopped after \d+\.\d s, every flow had ended`)
}
