package cc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// testPath is a link from a to b, and a receiver at b.
type testPath struct {
	a        *linktest.Host
	listener net.Listener
	got      *atomic.Int64
	link     *link.Link
}

// newPath makes a link with a queue of one bandwidth-delay product, on which
// data packets get lost before the bottleneck.
func newPath(t *testing.T, rateBps int64, rtt time.Duration, loss float64, six bool) testPath {
	t.Helper()
	ab := link.Settings{Delay: rtt / 2, RateBps: rateBps, QueueBDP: 1, Loss: link.Loss{Probability: loss}, Seed: 1}
	a, b, l := linktest.New(t, linktest.Kinds[0], 1500, ab, link.Settings{Delay: rtt / 2})
	p := testPath{a: a, link: l}
	b.Do(t, func() error {
		address := b.V4
		if six {
			address = b.V6
		}
		p.listener, p.got = listen(t, address, nil)
		return nil
	})
	return p
}

func (p testPath) dial(t *testing.T, control func(string, string, syscall.RawConn) error) (conn net.Conn) {
	t.Helper()
	p.a.Do(t, func() (err error) {
		conn, err = dial(p.listener.Addr().String(), control)
		return err
	})
	// What is not sent at the end must not be sent during the next measurement.
	must(t, conn.(*net.TCPConn).SetLinger(0))
	return conn
}

// TestHaulTimer holds that the retransmission timer is bounded in an outage and
// at no other time, that a connection is not given up sooner for it, and that a
// program's own settings stay.
func TestHaulTimer(t *testing.T) {
	t.Parallel()
	const (
		rtoMax      = 44 // TCP_RTO_MAX_MS, which x/sys does not have yet
		userTimeout = unix.TCP_USER_TIMEOUT
		inLoss      = 4 // TCP_CA_Loss: the retransmission timer has fired
	)
	h := testHost(t)
	name := load(t, h, "haul")
	p := newPath(t, 20e6, 20*time.Millisecond, 0, false)
	settings := p.link.Settings(link.AToB)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	_, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, rtoMax)
	must(t, unix.Close(fd))
	canBound := err == nil // since Linux 6.15
	for _, test := range []struct {
		name                           string
		set                            func(fd int) error
		rtoMax, rtoMaxDown             int // ms
		userTimeout, userTimeoutOfDown int // ms
	}{
		// 924.6 s are the kernel's own with 15 retries, from 200 ms to 2 minutes.
		{"default", func(int) error { return nil }, 120_000, 4000, 0, 924_600},
		{"user timeout", func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, userTimeout, 60_000) }, 120_000, 120_000, 60_000, 60_000},
		{"bound", func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, rtoMax, 30_000) }, 30_000, 30_000, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := p.dial(t, withAlgorithm(name))
			raw, err := conn.(*net.TCPConn).SyscallConn()
			must(t, err)
			if !canBound { // the kernel has its own bound, and haul changes nothing
				if test.rtoMax != 120_000 {
					t.Skip("needs TCP_RTO_MAX_MS (Linux 6.15)")
				}
				test.rtoMaxDown, test.userTimeoutOfDown = test.rtoMax, test.userTimeout
			}
			must(t, raw.Control(func(fd uintptr) { err = test.set(int(fd)) }))
			must(t, err)
			got := func() (max, timeout int) {
				must(t, raw.Control(func(fd uintptr) {
					if max = test.rtoMax; canBound {
						max, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, rtoMax)
					}
					if err == nil {
						timeout, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, userTimeout)
					}
				}))
				must(t, err)
				return max, timeout
			}
			is := func(wantMax, wantTimeout int, outage bool) {
				t.Helper()
				var max, timeout int
				var state uint8
				nettest.Eventually(t, patience, func() bool {
					max, timeout = got()
					state = infoOf(t, conn).Ca_state
					return max == wantMax && timeout == wantTimeout && (state == inLoss) == outage
				}, func() string {
					return fmt.Sprintf("outage %v: the timer is bounded to %d ms, the user timeout is %d ms, the state %d, want %d, %d and %d only in an outage",
						outage, max, timeout, state, wantMax, wantTimeout, inLoss)
				})
			}
			deliver(t, conn, 64<<10)
			is(test.rtoMax, test.userTimeout, false)
			var sending sync.WaitGroup
			defer sending.Wait()
			defer conn.Close()
			must(t, conn.SetWriteDeadline(time.Time{}))
			sending.Go(func() { _, _ = io.Copy(conn, zeros{}) }) // until the connection is closed
			down := settings
			down.Down = true
			must(t, p.link.Set(link.AToB, down))
			is(test.rtoMaxDown, test.userTimeoutOfDown, true) // after a timeout
			must(t, p.link.Set(link.AToB, settings))
			is(test.rtoMax, test.userTimeout, false)
		})
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// brutalOption is the control function of an existing client: it sets the rate in
// bytes of payload per second, and the gain in tenths.
func brutalOption(bytesPerSecond uint64) func(fd int) error {
	const (
		option     = 23301
		gainTenths = 20
	)
	value := binary.NativeEndian.AppendUint64(nil, bytesPerSecond)
	value = binary.NativeEndian.AppendUint32(value, gainTenths)
	return func(fd int) error { return unix.SetsockoptString(fd, unix.IPPROTO_TCP, option, string(value)) }
}

// paced waits until the kernel paces a connection to so many bytes per second.
// What is told while it lives counts from the next acknowledgement on.
func paced(t *testing.T, conn net.Conn, want uint64) {
	t.Helper()
	var is uint64
	nettest.Repeatedly(t, patience, func() bool {
		if is = infoOf(t, conn).Pacing_rate; is != want {
			_, err := conn.Write([]byte{0})
			must(t, err)
		}
		return is == want
	}, func() string { return fmt.Sprintf("the connection is paced to %d bytes/s, want %d", is, want) })
}

// smallSegments gives a connection over loopback the segments of a usual path:
// their size does not grow with the window, and a slow rate sends many of them.
func smallSegments(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1448)
}

// payloadOf is the part of a rate of IP packets, in bits per second, that is a
// connection's payload, in bytes per second.
func payloadOf(t *testing.T, conn net.Conn, bitsPerSecond uint64) uint64 {
	t.Helper()
	mss, headers := uint64(infoOf(t, conn).Snd_mss), uint64(20+12+20) // TCP, its timestamps, IP
	if conn.RemoteAddr().(*net.TCPAddr).IP.To4() == nil {
		headers += 20
	}
	return bitsPerSecond / 8 * mss / (mss + headers)
}

// TestBrutalPacesToRate holds that the kernel paces a connection to the rate
// that each way of telling it gives.
func TestBrutalPacesToRate(t *testing.T) {
	h := testHost(t)
	name := load(t, h, "brutal")
	rates, err := h.Rates(name)
	must(t, err)
	defer rates.Close()
	const untold = 1e6 / 8
	l, _ := listen(t, loopback, nil)
	connect := func(t *testing.T, more ...func(fd int) error) net.Conn {
		t.Helper()
		conn, err := dial(l.Addr().String(), withAlgorithm(name, append(more, smallSegments)...))
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	limit := func(fd int) error { return unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 2e6) }
	for _, test := range []struct {
		name string
		tell []func(fd int) error
		want uint64
	}{
		{"option", []func(int) error{brutalOption(3e6)}, 3e6},
		{"max pacing rate", []func(int) error{limit}, 2e6},
		{"option over the max pacing rate", []func(int) error{limit, brutalOption(20e6)}, 2e6},
		{"untold", nil, untold},
	} {
		t.Run(test.name, func(t *testing.T) { paced(t, connect(t, test.tell...), test.want) })
	}
	t.Run("no faster", func(t *testing.T) {
		const size, burst = 96 << 10, 32 << 10
		begun := time.Now()
		conn := connect(t)
		deliver(t, conn, size)
		if took, least := time.Since(begun), time.Second*(size-burst)/untold; took < least {
			t.Errorf("%d bytes took %v, at least %v expected at %.0f bytes/s", size, took, least, float64(untold))
		}
	})
	for _, address := range []netip.Addr{loopback, netip.IPv6Loopback()} {
		t.Run("prefix of "+address.String(), func(t *testing.T) {
			l, _ := listen(t, address, nil)
			prefix, err := address.Prefix(address.BitLen() - 8)
			must(t, err)
			_, err = rates.SetPrefix(prefix, Rate{BitsPerSecond: 20e6})
			must(t, err)
			conn, err := dial(l.Addr().String(), withAlgorithm(name, smallSegments))
			must(t, err)
			defer conn.Close()
			paced(t, conn, payloadOf(t, conn, 20e6))
			must(t, rates.ClearPrefix(prefix))
			if left, err := rates.Prefixes(); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			paced(t, conn, untold)
		})
	}
	t.Run("budget", func(t *testing.T) {
		id, err := rates.NewBudget(Rate{BitsPerSecond: 10e6})
		must(t, err)
		conn := connect(t, func(fd int) error { return rates.Join(uintptr(fd), id) })
		paced(t, conn, payloadOf(t, conn, 10e6))
		// A change counts for connections that are there.
		must(t, rates.SetBudget(id, Rate{BitsPerSecond: 30e6}))
		paced(t, conn, payloadOf(t, conn, 30e6))
		must(t, rates.RemoveBudget(id))
		paced(t, conn, untold)
	})
}

// TestBrutalSharesBudget holds that busy connections of a budget come to have
// equal parts of it.
func TestBrutalSharesBudget(t *testing.T) {
	h := testHost(t)
	name := load(t, h, "brutal")
	rates, err := h.Rates(name)
	must(t, err)
	defer rates.Close()
	const rateBps = 6e6
	id, err := rates.NewBudget(Rate{BitsPerSecond: rateBps})
	must(t, err)
	l, _ := listen(t, loopback, nil)
	join := func(fd int) error { return errors.Join(rates.Join(uintptr(fd), id), smallSegments(fd)) }
	var sending sync.WaitGroup
	defer sending.Wait()
	all := make([]net.Conn, 3)
	for i := range all {
		all[i], err = dial(l.Addr().String(), withAlgorithm(name, join))
		must(t, err)
		defer all[i].Close()
		sending.Go(func() { _, _ = io.Copy(all[i], zeros{}) }) // until the connection is closed
	}
	paces := make([]uint64, len(all))
	want := payloadOf(t, all[0], rateBps/uint64(len(all)))
	nettest.Eventually(t, patience, func() bool {
		equal := true
		for i, conn := range all {
			paces[i] = infoOf(t, conn).Pacing_rate
			equal = equal && paces[i] == want
		}
		return equal
	}, func() string { return fmt.Sprintf("they are paced to %d bytes/s, want %d each", paces, want) })
	must(t, rates.RemoveBudget(id))
}

// TestBrutalMakesUpForLoss holds that the pace rises above the rate where packets
// get lost, as far as to a fifth of them, and never above SO_MAX_PACING_RATE.
func TestBrutalMakesUpForLoss(t *testing.T) {
	h := testHost(t)
	name := load(t, h, "brutal")
	p := newPath(t, 40e6, 10*time.Millisecond, 0.1, false)
	const rate = 2_000_000
	limit := func(fd int) error { return unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate) }
	for _, test := range []struct {
		name string
		tell func(fd int) error
		most uint64
	}{
		{"option", brutalOption(rate), rate * 5 / 4},
		{"max pacing rate", limit, rate},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := p.dial(t, withAlgorithm(name, test.tell))
			var sending sync.WaitGroup
			defer sending.Wait()
			defer conn.Close()
			sending.Go(func() { _, _ = io.Copy(conn, zeros{}) }) // until the connection is closed
			var info *unix.TCPInfo
			nettest.Eventually(t, patience, func() bool {
				info = infoOf(t, conn)
				if info.Pacing_rate < rate || info.Pacing_rate > test.most {
					t.Fatalf("the connection is paced to %d bytes/s, want %d to %d", info.Pacing_rate, rate, test.most)
				}
				return info.Total_retrans > 100 && (info.Pacing_rate > rate) == (test.most > rate)
			}, func() string {
				return fmt.Sprintf("the connection is paced to %d bytes/s after %d retransmissions", info.Pacing_rate, info.Total_retrans)
			})
		})
	}
}

// TestEveryAlgorithmDeliversOverLoss holds that data arrive over a path that
// loses packets, and that the connection keeps its algorithm.
func TestEveryAlgorithmDeliversOverLoss(t *testing.T) {
	t.Parallel()
	h := testHost(t)
	names, err := h.Names()
	must(t, err)
	p := newPath(t, 50e6, 10*time.Millisecond, 0.05, false)
	for _, algorithm := range names {
		t.Run(algorithm, func(t *testing.T) {
			name := load(t, h, algorithm)
			conn := p.dial(t, withAlgorithm(name, brutalRate(algorithm)))
			defer conn.Close()
			for infoOf(t, conn).Total_retrans < 10 {
				deliver(t, conn, 128<<10)
			}
			if is := algorithmOf(t, conn); is != name {
				t.Errorf("the connection has %s now, want %s", is, name)
			}
		})
	}
}

// brutalRate gives brutal more than the little that it has by itself.
func brutalRate(algorithm string) func(fd int) error {
	if algorithm == "brutal" {
		return brutalOption(2e6)
	}
	return func(int) error { return nil }
}

// TestRates holds that nonsense is refused by name, and that budgets of
// processes that have ended make room.
func TestRates(t *testing.T) {
	h := testHost(t)
	name := load(t, h, "brutal")
	other := load(t, h, "hybla")
	for _, none := range []string{other, testName()} {
		if _, err := h.Rates(none); err == nil {
			t.Errorf("%s has rates", none)
		}
	}
	rates, err := h.Rates(name)
	must(t, err)
	defer rates.Close()
	nettest.CheckLeaks(t)
	for _, bad := range []Rate{{}, {BitsPerSecond: -1}, {BitsPerSecond: 1000}, {BitsPerSecond: 1 << 62}, {BitsPerSecond: 1e6, GainTenths: 4}, {BitsPerSecond: 1e6, GainTenths: 81}} {
		if _, err := rates.NewBudget(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
		if _, err := rates.SetPrefix(netip.MustParsePrefix("192.0.2.0/24"), bad); err == nil {
			t.Errorf("%+v is accepted for a prefix", bad)
		}
	}
	for _, bad := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("192.0.2.1/24")} {
		if _, err := rates.SetPrefix(bad, Rate{BitsPerSecond: 8e6}); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	for _, prefix := range []string{"0.0.0.0/0", "::/0", "192.0.2.0/24", "192.0.2.0/25", "2001:db8::/32", "192.0.2.1/32", "2001:db8::1/128"} {
		isNew, err := rates.SetPrefix(netip.MustParsePrefix(prefix), Rate{BitsPerSecond: 8e6})
		if err != nil || !isNew {
			t.Errorf("%s: new %v, %v", prefix, isNew, err)
		}
		if isNew, err = rates.SetPrefix(netip.MustParsePrefix(prefix), Rate{BitsPerSecond: 16e6}); err != nil || isNew {
			t.Errorf("%s again: new %v, %v", prefix, isNew, err)
		}
	}
	all, err := rates.Prefixes()
	must(t, err)
	for _, p := range all {
		if p.Rate.BitsPerSecond != 16e6 {
			t.Errorf("%+v", p)
		}
		must(t, rates.ClearPrefix(p.Prefix))
	}
	if all, err = rates.Prefixes(); err != nil || len(all) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	// All that there is room for belongs to a process that does not exist, but
	// for one.
	mine, err := rates.NewBudget(Rate{BitsPerSecond: 1e6})
	must(t, err)
	const nobody = 1 << 30
	for id := mine + 1; err == nil; id++ {
		err = rates.budgets.Update(id, Rate{BitsPerSecond: 1e6}.budget(nobody), ebpf.UpdateNoExist)
	}
	if !errors.Is(err, unix.E2BIG) {
		t.Fatalf("filling the budgets ended with %v, want E2BIG", err)
	}
	if _, err := rates.NewBudget(Rate{BitsPerSecond: 1e6}); err != nil {
		t.Errorf("no room: %v", err)
	}
	if err := rates.SetBudget(mine, Rate{BitsPerSecond: 2e6}); err != nil {
		t.Errorf("the budget of this process is gone: %v", err)
	}
}

// TestRatesPerNamespace holds that a prefix has its rate in one namespace only.
func TestRatesPerNamespace(t *testing.T) {
	h := testHost(t)
	name := load(t, h, "brutal")
	rates, err := h.Rates(name)
	must(t, err)
	defer rates.Close()
	p := newPath(t, 40e6, 10*time.Millisecond, 0, false)
	to := netip.MustParseAddrPort(p.listener.Addr().String()).Addr()
	// Told in the test's own namespace, not in the sender's.
	if _, err := rates.SetPrefix(netip.PrefixFrom(to, 32), Rate{BitsPerSecond: 20e6}); err != nil {
		t.Fatal(err)
	}
	conn := p.dial(t, withAlgorithm(name))
	defer conn.Close()
	paced(t, conn, 1e6/8)
	must(t, rates.ClearPrefix(netip.PrefixFrom(to, 32)))
}

// TestBrutalAfterIdle holds that the first packet after an idle time already has a rate
// that was set in between. On a link that is down no acknowledgement can bring it.
func TestBrutalAfterIdle(t *testing.T) {
	h := testHost(t)
	name := load(t, h, "brutal")
	rates, err := h.Rates(name)
	must(t, err)
	defer rates.Close()
	id, err := rates.NewBudget(Rate{BitsPerSecond: 10e6})
	must(t, err)
	p := newPath(t, 40e6, 10*time.Millisecond, 0, false)
	conn := p.dial(t, withAlgorithm(name, func(fd int) error { return rates.Join(uintptr(fd), id) }))
	defer conn.Close()
	deliver(t, conn, 64<<10)
	paced(t, conn, payloadOf(t, conn, 10e6))
	deliver(t, conn, 1)

	down := p.link.Settings(link.AToB)
	down.Down = true
	must(t, p.link.Set(link.AToB, down))
	must(t, rates.SetBudget(id, Rate{BitsPerSecond: 20e6}))
	var info *unix.TCPInfo
	nettest.Eventually(t, patience, func() bool {
		info = infoOf(t, conn)
		return info.Unacked == 0 && info.Last_ack_recv >= 40 // brutal looks every 16 ms
	}, func() string { return fmt.Sprintf("it is not idle: %+v", info) })
	want := payloadOf(t, conn, 20e6)
	if info.Pacing_rate == want {
		t.Fatal("the idle connection has the new rate already")
	}
	_, err = conn.Write([]byte{0})
	must(t, err)
	if is := infoOf(t, conn).Pacing_rate; is != want {
		t.Errorf("after the first packet it is paced to %d bytes/s, want %d", is, want)
	}
	must(t, rates.RemoveBudget(id))
}
