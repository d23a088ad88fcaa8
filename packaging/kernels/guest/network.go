package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ip runs iproute2's ip.
func ip(ctx context.Context, args string) error { return command(ctx, "ip "+args) }

// command runs a program with arguments without spaces.
func command(ctx context.Context, line string) error {
	words := strings.Fields(line)
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

// commands runs several, one after the other.
func commands(ctx context.Context, lines string) error {
	for line := range strings.Lines(lines) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if err := command(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// Addresses of the hosts of pair, and of the sink at b.
const (
	addressA    = "10.9.0.1"
	addressB    = "10.9.0.2"
	sinkAddress = addressB + ":7000"
)

// pair makes the hosts a and b, network namespaces with a cable between their devices
// a0 and b0, and a sink at b.
func pair(ctx context.Context) (remove func(), err error) {
	removeHosts := func() {
		_ = ip(context.Background(), "netns del a") // missing after a failure
		_ = ip(context.Background(), "netns del b")
	}
	err = commands(ctx, `
		ip netns add a
		ip netns add b
		ip link add a0 netns a type veth peer name b0 netns b
		ip -n a addr add `+addressA+`/24 dev a0
		ip -n b addr add `+addressB+`/24 dev b0
		ip -n a link set lo up
		ip -n b link set lo up
		ip -n a link set a0 up
		ip -n b link set b0 up`)
	if err != nil {
		removeHosts()
		return nil, err
	}
	s, err := sinkAt("b", sinkAddress)
	if err != nil {
		removeHosts()
		return nil, err
	}
	return func() { s.Close(); removeHosts() }, nil
}

// inside runs f in a host, in the guest itself if the name is empty. Sockets that f opens
// stay there.
func inside(host string, f func() error) error {
	if host == "" {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		ns, err := netns.GetFromName(host)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err != nil {
			done <- fmt.Errorf("enter host %s: %w", host, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// sinkAt listens in a host, of the guest itself if the name is empty. It answers each
// connection with the SHA-256 of what it received.
func sinkAt(host, address string) (s net.Listener, err error) {
	err = inside(host, func() (err error) {
		s, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h := sha256.New()
				if _, err := io.Copy(h, c); err == nil {
					_, _ = c.Write(h.Sum(nil)) // the sender finds out
				}
			}()
		}
	}()
	return s, nil
}

// send sends random bytes over a connection to a sink, and compares the digests.
func send(c *net.TCPConn, size int64) error {
	h := sha256.New()
	var seed [32]byte
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	if _, err := io.Copy(io.MultiWriter(c, h), io.LimitReader(rand.NewChaCha8(seed), size)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err != nil {
		return fmt.Errorf("read the digest: %w", err)
	}
	if string(got) != string(h.Sum(nil)) {
		return fmt.Errorf("%d bytes arrived otherwise than they were sent", size)
	}
	return nil
}

// dial connects from a host, with a congestion control unless it is empty.
func dial(ctx context.Context, host, address, congestion string) (*net.TCPConn, error) {
	var c net.Conn
	err := inside(host, func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
			var setErr error
			err := raw.Control(func(fd uintptr) {
				if congestion != "" {
					setErr = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
				}
			})
			return errors.Join(err, setErr)
		}}
		// An IP address, so the connection is made on this thread.
		c, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// option reads a number of a connection's TCP options.
func option(c *net.TCPConn, name int) (value int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctrlErr := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) })
	return value, errors.Join(ctrlErr, err)
}

func congestionOf(c *net.TCPConn) (name string, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	ctrlErr := raw.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	return strings.TrimRight(name, "\x00"), errors.Join(ctrlErr, err)
}

// background starts a program that runs until stop.
func background(name string, args ...string) (stop func() error, err error) {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			return err
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			return fmt.Errorf("%s does not stop", name)
		}
	}, nil
}

// listens waits until something listens at a port in the thread's network namespace. It
// does not connect: iperf3's server takes that for a test.
func listens(ctx context.Context, port int) error {
	suffix := fmt.Sprintf(":%04X", port)
	for {
		for _, family := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + family)
			if err != nil {
				continue // without IPv6
			}
			for line := range strings.Lines(string(b)) {
				// The second field is the local address, the fourth the state: 0A listens.
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing listens at port %d", port)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
