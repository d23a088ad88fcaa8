package nettest

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

func TestPipeListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ListenPipe()
		go func() {
			conn, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "accepted")
		}()
		conn, err := l.Dial()
		Must(t, err)
		if got, err := io.ReadAll(conn); string(got) != "accepted" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		l.Close()
		l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accepting on a closed listener: %v", err)
		}
		if _, err := l.Dial(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dialing a closed listener: %v", err)
		}
	})
}
