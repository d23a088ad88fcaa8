package hosts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
)

// ResetTCP ends an IPv4 connection of the host: its program gets ECONNABORTED, and the
// other end a reset. It needs CONFIG_INET_DIAG_DESTROY. Without such a connection it
// does nothing.
func (h *Host) ResetTCP(local, remote netip.AddrPort) error {
	err := h.Do(func() error {
		diag, err := tcpinfo.OpenDiag()
		if err != nil {
			return err
		}
		defer diag.Close()
		c, err := diag.Get(local, remote)
		if err == nil {
			err = destroy(&c)
		}
		return err
	})
	for _, gone := range []error{tcpinfo.ErrNoConnection, unix.ENOENT, unix.ESTALE} {
		err = ignore(gone, err)
	}
	if err != nil {
		return fmt.Errorf("reset TCP %v to %v on host %s: %w", local, remote, h.Name, err)
	}
	return nil
}

// destroy has the kernel end a connection (SOCK_DESTROY of sock_diag(7)). The cookie
// names it: without one the kernel would end the listener where the connection is gone.
func destroy(c *tcpinfo.Connection) error {
	if !c.Local.Addr().Is4() || !c.Remote.Addr().Is4() {
		return errors.New("it is not IPv4")
	}
	var b [56]byte // struct inet_diag_req_v2, with struct inet_diag_sockid from byte 8 on
	b[0], b[1] = unix.AF_INET, unix.IPPROTO_TCP
	id := b[8:]
	binary.BigEndian.PutUint16(id[0:], c.Local.Port())
	binary.BigEndian.PutUint16(id[2:], c.Remote.Port())
	copy(id[4:], c.Local.Addr().AsSlice())
	copy(id[20:], c.Remote.Addr().AsSlice())
	binary.NativeEndian.PutUint32(id[40:], uint32(c.Cookie))
	binary.NativeEndian.PutUint32(id[44:], uint32(c.Cookie>>32))
	request := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	request.AddRawData(b[:])
	_, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
	return err
}
