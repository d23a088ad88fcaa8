package congestion

import (
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/bench/kit/congestion/receiver"
	"longhaul/lab"
	"longhaul/lab/hosts"
)

// userReceiver is a receiver in user space behind relay-b. Its address belongs to no
// socket, so that no kernel answers in its place.
type userReceiver struct {
	device   *os.File
	received atomic.Int64
	done     chan struct{}
}

const receiverDevice = "receiver"

var (
	receiverAddress = netip.MustParseAddrPort("10.20.23.2:80")
	receiverGateway = netip.MustParseAddr("10.20.23.1")
)

// startReceiver starts a receiver until close.
func (n *network) startReceiver(does receiver.Behaviour) (*userReceiver, error) {
	relay := n.Host("relay-b")
	r := &userReceiver{done: make(chan struct{})}
	err := relay.Do(func() (err error) {
		r.device, err = openTUN(receiverDevice)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a receiver in user space: %w", err)
	}
	err = relay.Up(receiverDevice)
	if err == nil {
		err = relay.Address(receiverDevice, netip.PrefixFrom(receiverGateway, siteBits))
	}
	if err == nil {
		err = n.Host("relay-a").Route(hosts.Route{To: netip.PrefixFrom(receiverGateway, siteBits).Masked(), Via: lab.WANB})
	}
	if err != nil {
		r.device.Close()
		return nil, fmt.Errorf("reach the receiver in user space: %w", err)
	}
	go r.run(receiver.New(does))
	return r, nil
}

// openTUN opens a TUN device of whole packets in the calling thread's namespace.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open /dev/net/tun", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("create a TUN device", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// run answers packets until the device is closed.
func (r *userReceiver) run(end *receiver.Receiver) {
	defer close(r.done)
	packet := make([]byte, 65536)
	for {
		n, err := r.device.Read(packet)
		if err != nil {
			return // closed
		}
		for _, reply := range end.Handle(packet[:n], time.Now()) {
			_, _ = r.device.Write(reply) // a lost ACK is the sender's affair
		}
		r.received.Store(end.Received())
	}
}

// close ends the receiver. nil is none.
func (r *userReceiver) close() {
	if r != nil {
		r.device.Close()
		<-r.done
	}
}
