package netfilter

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// The kernel's lists are read as they come, so that the end of what is needed, or a bound,
// ends the reading.

// errInterrupted reports that what was listed changed meanwhile.
var errInterrupted = errors.New("changed while it was read")

// errEnough ends a dump.
var errEnough = errors.New("enough")

// dumpBytes is room for one message of the kernel's lists.
const dumpBytes = 1 << 17

// dump asks the kernel for a list in the calling thread's network namespace and passes the
// body of each message.
func dump(protocol int, kind uint16, body []byte, each func(kind uint16, body []byte) error) error {
	return ask(protocol, kind, unix.NLM_F_DUMP, body, each)
}

// ask is dump for a question with these flags beside NLM_F_REQUEST. One without an end of its answer
// needs an each that returns errEnough.
func ask(protocol int, kind, flags uint16, body []byte, each func(kind uint16, body []byte) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if protocol == unix.NETLINK_ROUTE {
		// Lists by table need it. Without it the kernel lists more than asked for.
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	request := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(request[0:], uint32(unix.NLMSG_HDRLEN+len(body)))
	binary.NativeEndian.PutUint16(request[4:], kind)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|flags)
	if err := unix.Sendto(fd, append(request, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buffer := make([]byte, dumpBytes)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		if done, err := messages(buffer[:n], each); done || err != nil {
			if err == errEnough {
				return nil
			}
			return err
		}
	}
}

// messages passes the bodies of netlink messages; done means that the list has ended.
func messages(b []byte, each func(kind uint16, body []byte) error) (done bool, err error) {
	for len(b) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.NLMSG_HDRLEN || length > len(b) {
			return true, errors.New("a netlink message of an invalid length")
		}
		kind, flags, body := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), b[unix.NLMSG_HDRLEN:length]
		const interrupted = 0x10 // NLM_F_DUMP_INTR
		if flags&interrupted != 0 {
			return true, errInterrupted
		}
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(body) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
					return true, unix.Errno(-code)
				}
			}
			return true, nil
		case unix.NLMSG_NOOP, unix.NLMSG_OVERRUN:
		default:
			if err := each(kind, body); err != nil {
				return true, err
			}
		}
		b = b[min(aligned(length), len(b)):]
	}
	return false, nil
}

func aligned(n int) int { return (n + 3) &^ 3 }

// walk passes netlink attributes until one is not complete.
func walk(b []byte, each func(kind uint16, data []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return
		}
		each(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofNlAttr:length:length])
		b = b[min(aligned(length), len(b)):]
	}
}

// attributes are netlink attributes by type.
type attributes map[uint16][]byte

func parse(b []byte) attributes {
	a := attributes{}
	walk(b, func(kind uint16, data []byte) { a[kind] = data })
	return a
}

// number is a number of nftables, which has the network's byte order.
func (a attributes) number(of uint16) uint32 {
	if b := a[of]; len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a attributes) long(of uint16) uint64 {
	if b := a[of]; len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (a attributes) has(of uint16) bool { _, ok := a[of]; return ok }

func (a attributes) text(of uint16) string { return unix.ByteSliceToString(a[of]) }

// value is the data of a nested value.
func (a attributes) value(of uint16) []byte { return parse(a[of])[unix.NFTA_DATA_VALUE] }

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func nativeNumber(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, aligned(len(data))-len(data))...)
}

// nameAttribute is the attribute of a name in a request.
func nameAttribute(kind uint16, name string) []byte { return attribute(kind, append([]byte(name), 0)) }
