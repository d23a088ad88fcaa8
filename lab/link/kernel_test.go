package link_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

// patience bounds every wait.
const patience = time.Minute

func forEachKind(t *testing.T, f func(t *testing.T, kind linktest.Kind)) {
	for _, kind := range linktest.Kinds {
		t.Run(kind.Name, func(t *testing.T) { f(t, kind) })
	}
}

// transfer sends random bytes from a to b and compares the received ones.
func transfer(t *testing.T, a, b *linktest.Host, to netip.Addr, size int) {
	t.Helper()
	sendAndLook(t, a, b, to, size, func(int) {})
}

// sendAndLook is a transfer that looks at the sender's socket once all has arrived.
func sendAndLook(t *testing.T, a, b *linktest.Host, to netip.Addr, size int, look func(fd int)) {
	t.Helper()
	sender, receiver := linktest.Connect(t, a, b, to)
	deadline := time.Now().Add(patience)
	if err := errors.Join(sender.SetDeadline(deadline), receiver.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	if _, err := r.Read(sent); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := sender.Write(sent)
		err = errors.Join(err, sender.(*net.TCPConn).CloseWrite())
		written <- err
	}()
	hash := sha256.New()
	n, err := io.Copy(hash, receiver)
	if err := errors.Join(err, <-written); err != nil {
		t.Fatalf("after %d bytes: %v", n, err)
	}
	if want := sha256.Sum256(sent); n != int64(size) || !bytes.Equal(hash.Sum(nil), want[:]) {
		t.Fatalf("%d bytes arrived, not the %d that were sent", n, size)
	}
	raw, err := sender.(*net.TCPConn).SyscallConn()
	nettest.Must(t, err)
	nettest.Must(t, raw.Control(func(fd uintptr) { look(int(fd)) }))
	nettest.Must(t, sender.Close())
}

// settled waits until nothing is in flight and checks that the counters add up.
// A late emulator loses packets in front of a veth port and counts them; tests
// with the tag timed measure its capacity.
func settled(t *testing.T, kind linktest.Kind, l *link.Link) (ab, ba link.Counters) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool {
		ab, ba = l.Counters(link.AToB), l.Counters(link.BToA)
		return ab.InFlight == 0 && ba.InFlight == 0
	}, func() string { return "packets are still in flight" })
	for _, c := range []link.Counters{ab, ba} {
		if sum := c.PacketsDelivered + c.Lost + c.QueueDrops + c.TooBig + c.Outage + c.WriteErrors; sum != c.PacketsIn {
			t.Errorf("%d packets came in, %d are accounted for: %+v", c.PacketsIn, sum, c)
		}
		if c.WriteErrors != 0 || c.DeviceDrops != 0 && kind.Name != "veth" {
			t.Errorf("lost beside the settings: %+v", c)
		}
	}
	return ab, ba
}

// TestContentSurvives sends through links that split super-packets in every
// way.
func TestContentSurvives(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings link.Settings
		check    func(link.Counters) bool // the settings had their effect
	}{
		{"perfect", link.Settings{}, func(c link.Counters) bool { return c.Lost == 0 && c.PacketsIn > 2800 }},
		{"loss", link.Settings{Delay: time.Millisecond, Loss: link.Loss{Probability: 0.01}},
			func(c link.Counters) bool { return c.Lost > 0 }},
		{"short queue", link.Settings{Delay: time.Millisecond, RateBps: 200_000_000, QueueBytes: 30_000},
			func(c link.Counters) bool { return c.QueueDrops > 0 && c.QueueDelayMax > 0 }},
		{"overtaking", link.Settings{Delay: time.Millisecond, Jitter: 200 * time.Microsecond,
			Reorder: link.Reorder{Probability: 0.01, Hold: time.Millisecond}}, func(c link.Counters) bool { return c.Reordered > 0 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			forEachKind(t, func(t *testing.T, kind linktest.Kind) {
				a, b, l := linktest.New(t, kind, 1500, test.settings, test.settings)
				transfer(t, a, b, b.V4, 4<<20)
				transfer(t, b, a, a.V6, 4<<20)
				ab, ba := settled(t, kind, l)
				if !test.check(ab) || !test.check(ba) {
					t.Errorf("the settings had no effect:\n%+v\n%+v", ab, ba)
				}
			})
		})
	}
}

func TestECNSurvives(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		s := link.Settings{Loss: link.Loss{Probability: 0.01}}
		a, b, _ := linktest.New(t, kind, 1500, s, link.Settings{})
		a.Sysctl(t, "ipv4/tcp_ecn", "1")
		b.Sysctl(t, "ipv4/tcp_ecn", "1")
		transfer(t, a, b, b.V4, 4<<20)
	})
}

// Senders learn of the link's marks, with ECN and with accurate ECN, and no byte of
// theirs changes.
func TestMarksReachTheSender(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		for name, sysctl := range map[string]string{"ECN": "1", "accurate ECN": "3"} {
			t.Run(name, func(t *testing.T) {
				// The first window alone waits longer than the threshold.
				s := link.Settings{Delay: 2 * time.Millisecond, RateBps: 20_000_000, QueueBytes: 1 << 20, MarkAbove: time.Millisecond}
				a, b, l := linktest.New(t, kind, 1500, s, s)
				for _, h := range []*linktest.Host{a, b} {
					err := h.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_ecn", []byte(sysctl), 0) })
					if errors.Is(err, unix.EINVAL) && name == "accurate ECN" {
						t.Skip("this kernel has no accurate ECN")
					}
					nettest.Must(t, err)
				}
				a.Sysctl(t, "ipv4/tcp_ecn_fallback", "0") // a SYN that a busy machine answers late asks again
				for _, to := range []netip.Addr{b.V4, b.V6} {
					before := l.Counters(link.AToB).Marked
					var known uint32
					negotiated := false
					sendAndLook(t, a, b, to, 1<<20, func(fd int) {
						nettest.Eventually(t, patience, func() bool {
							info, err := tcpinfo.Get(fd)
							nettest.Must(t, err)
							known = info.DeliveredCE
							negotiated = info.Options&tcpinfo.OptECN != 0
							return info.Unacked == 0
						}, func() string { return "data is not acknowledged" })
					})
					if !negotiated && name == "accurate ECN" {
						t.Skip("this kernel takes the value and requests no ECN by it")
					}
					if !negotiated {
						t.Errorf("%v: the connection has no ECN", to)
					}
					ab, _ := settled(t, kind, l)
					marked := ab.Marked - before
					// Without accurate ECN, the sender counts all that is delivered
					// until the receiver takes back its echo.
					if marked == 0 || known == 0 || name == "accurate ECN" && uint64(known) != marked {
						t.Errorf("%v: the link marked %d packets, the sender knows of %d", to, marked, known)
					}
				}
			})
		}
	})
}

// TestSetWhileRunning black-holes a connection and then restores it.
func TestSetWhileRunning(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		a, b, l := linktest.New(t, kind, 1500, link.Settings{}, link.Settings{})
		sender, receiver := linktest.Connect(t, a, b, b.V4)
		exchange := func(within time.Duration) error {
			if err := receiver.SetReadDeadline(time.Now().Add(within)); err != nil {
				t.Fatal(err)
			}
			if _, err := sender.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			_, err := receiver.Read(make([]byte, 1))
			return err
		}
		if err := exchange(patience); err != nil {
			t.Fatal(err)
		}
		if err := l.Set(link.AToB, link.Settings{Down: true}); err != nil {
			t.Fatal(err)
		}
		if err := exchange(100 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read through an outage: %v", err)
		}
		nettest.Eventually(t, patience, func() bool { return l.Counters(link.AToB).Outage > 0 },
			func() string { return "the outage counted nothing" })
		delay := link.Settings{Delay: 20 * time.Millisecond}
		if err := l.Set(link.AToB, delay); err != nil {
			t.Fatal(err)
		}
		if got := l.Settings(link.AToB); got != delay {
			t.Errorf("settings are %+v, want %+v", got, delay)
		}
		if err := exchange(patience); err != nil {
			t.Fatalf("after the outage: %v", err)
		}
		err := l.Set(link.BToA, link.Settings{MTU: 1})
		if err == nil || !strings.HasPrefix(err.Error(), "b-to-a link settings: MTU is 1,") {
			t.Errorf("nonsense was answered with %v", err)
		}
	})
}

// TestMTU: the MTU applies to single packets, not super-packets, and larger
// ones are dropped.
func TestMTU(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		a, b, l := linktest.New(t, kind, 1500, link.Settings{MTU: 1500}, link.Settings{MTU: 500})
		transfer(t, a, b, b.V4, 4<<20) // acknowledgements are below the MTU
		if c := l.Counters(link.AToB); c.TooBig != 0 {
			t.Errorf("dropped by the MTU: %+v", c)
		}
		sender, receiver := linktest.Connect(t, b, a, a.V4)
		if _, err := sender.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		nettest.Eventually(t, patience, func() bool { return l.Counters(link.BToA).TooBig > 0 },
			func() string { return "no packet was too big" })
		receiver.Close()
	})
}

func TestJumbo(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		s := link.Settings{MTU: 65535}
		a, b, l := linktest.New(t, kind, 65535, s, s)
		transfer(t, a, b, b.V4, 16<<20)
		c, _ := settled(t, kind, l)
		if c.TooBig != 0 || c.BytesIn/c.PacketsIn < 9000 {
			t.Errorf("packets are small on a link with a large MTU: %+v", c)
		}
	})
}

func TestCloseLeavesNothing(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		nettest.RequireSandbox(t)
		nettest.CheckLeaks(t)
		s := link.Settings{Delay: 10 * time.Millisecond}
		a, b, l := linktest.New(t, kind, 1500, s, s)
		transfer(t, a, b, b.V4, 1<<20)
		if l.CPUTime() <= 0 {
			t.Error("the emulator used no CPU time")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if l.CPUTime() <= 0 || l.Counters(link.AToB).PacketsIn == 0 {
			t.Error("what was counted is gone after Close")
		}
		if err := l.Set(link.AToB, s); err == nil {
			t.Error("a closed link took settings")
		}
		a.Do(t, func() error {
			if _, err := os.Stat("/sys/class/net/wan0"); err == nil {
				return errors.New("the device is still there")
			}
			return nil
		})
	})
}

func TestCloseBeforeStart(t *testing.T) {
	nettest.RequireSandbox(t)
	nettest.CheckLeaks(t)
	a, b, l := linktest.New(t, linktest.Kinds[1], 1500, link.Settings{}, link.Settings{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, _ = a, b, l
}

func TestNewRefusesNonsense(t *testing.T) {
	_, err := link.New(nil, nil, link.Settings{Delay: -1}, link.Settings{RateBps: -1})
	if err == nil || !strings.Contains(err.Error(), "a-to-b link settings: Delay") || !strings.Contains(err.Error(), "b-to-a link settings: RateBps") {
		t.Errorf("got %v", err)
	}
}

func TestOpenRefusesNonsense(t *testing.T) {
	if _, err := link.OpenTUN(strings.Repeat("x", 16), 1500); err == nil {
		t.Error("a long name was taken")
	}
	if _, err := link.OpenVeth("near", "", -1, 1500); err == nil {
		t.Error("an empty name was taken")
	}
	if _, err := link.OpenTUN("wan0", 67); err == nil {
		t.Error("an MTU of 67 was taken")
	}
}

// Bytes that the link alters reach the program: no checksum shows it.
func TestAlteredBytesArrive(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind linktest.Kind) {
		a, b, l := linktest.New(t, kind, 1500, link.Settings{Alter: 1}, link.Settings{})
		sender, receiver := linktest.Connect(t, a, b, b.V4)
		nettest.Must(t, receiver.SetDeadline(time.Now().Add(patience)))
		sent := bytes.Repeat([]byte{7}, 100_000)
		go func() { _, _ = sender.Write(sent) }()
		got := make([]byte, len(sent))
		_, err := io.ReadFull(receiver, got)
		nettest.Must(t, err)
		if bytes.Equal(got, sent) {
			t.Error("no byte was altered")
		}
		if c := l.Counters(link.AToB); c.Altered == 0 {
			t.Errorf("none of %d packets counts as altered", c.PacketsIn)
		}
	})
}
