package pair

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestConnectError holds the words that status, ready, check and events have for a far relay that
// cannot be reached.
func TestConnectError(t *testing.T) {
	to := netip.MustParseAddrPort("10.20.20.20:6000")
	dial := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	for _, tt := range []struct {
		err, is error
		want    string
	}{
		{dial(os.NewSyscallError("connect", unix.ECONNREFUSED)), unix.ECONNREFUSED, "connect to 10.20.20.20:6000: connection refused"},
		{dial(os.ErrDeadlineExceeded), os.ErrDeadlineExceeded, "connect to 10.20.20.20:6000: i/o timeout"},
		{dial(os.NewSyscallError("connect", unix.EINVAL)), unix.EINVAL, "connect to 10.20.20.20:6000: invalid argument, as by a blackhole route of this host"},
		{errors.New("use interface wan1: no such device"), nil, "connect to 10.20.20.20:6000: use interface wan1: no such device"},
	} {
		got := connectError(to, tt.err)
		if got.Error() != tt.want || tt.is != nil && !errors.Is(got, tt.is) {
			t.Errorf("%v becomes %q, want %q", tt.err, got, tt.want)
		}
	}
}
