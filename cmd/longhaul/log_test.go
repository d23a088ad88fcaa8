//go:build linux

package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"longhaul/test/nettest"
)

// TestForwardingGoesOnWithoutALogReader runs the program with a stderr that is
// full and one whose reader has gone.
func TestForwardingGoesOnWithoutALogReader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		prepare func(r, w *os.File)
	}{
		{"stuck", func(r, w *os.File) {
			fd := int(w.Fd()) // once: every call makes the descriptor block again
			if err := syscall.SetNonblock(fd, true); err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := syscall.Write(fd, make([]byte, 4096)); err != nil {
					break
				}
			}
			if err := syscall.SetNonblock(fd, false); err != nil {
				t.Fatal(err)
			}
		}},
		{"gone", func(r, w *os.File) { r.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			tt.prepare(r, w)
			notify, next := notifySocket(t)
			listen := nettest.FreeAddress(t, "127.0.0.1")
			p := startWithStderr(t, w, []string{"NOTIFY_SOCKET=" + notify},
				"relay", "--listen", listen, "--forward", echoTarget(t), "--control-socket", "off")
			next("READY=1")
			for i := range 200 {
				talk(t, listen, fmt.Sprint("flow ", i))
			}
			p.Process.Signal(syscall.SIGTERM)
			if code := p.exitCode(t); code != exitOK {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
