package descriptor

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

func TestDuplicate(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	nettest.Must(t, err)
	fd, err := Duplicate(l.(*net.TCPListener))
	nettest.Must(t, err)
	defer unix.Close(fd)
	l.Close()
	if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens != 1 {
		t.Errorf("the duplicate listens: %d, %v", listens, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %d, %v: a program that is started would get it", flags, err)
	}
}

func TestDuplicateOfAClosedFile(t *testing.T) {
	f, err := os.Open("/dev/null")
	nettest.Must(t, err)
	f.Close()
	if fd, err := Duplicate(f); fd != -1 || err == nil {
		t.Errorf("%d, %v", fd, err)
	}
}
