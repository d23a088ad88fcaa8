package pathmtu

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/lab/hosts"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// row is three hosts in a row.
type row struct{ linktest.Row }

// newRow makes the hosts with the MTU of the facing devices of r and b.
func newRow(t *testing.T, mtuOfR, mtuOfB int) row {
	t.Helper()
	h := row{linktest.NewRow(t, 9000)}
	must(t, h.R.MTU("right", mtuOfR))
	must(t, h.B.MTU("eth0", mtuOfB))
	return h
}

// quick is for probes without an answer, and patient for others.
var (
	quick   = Options{Tries: 2, Wait: 300 * time.Millisecond}
	patient = Options{Tries: 2, Wait: time.Minute}
)

// probed probes from a with both IP versions at once.
func (h row) probed(t *testing.T, back bool, size int, want Result) {
	t.Helper()
	call, options := Toward, quick
	if back {
		call = From
	}
	if want.Verdict == Carries {
		options = patient
	}
	var both sync.WaitGroup
	for _, address := range []string{"10.9.2.2", "fd09:2::2"} {
		both.Go(func() {
			err := h.A.Do(func() error {
				got, err := call(context.Background(), netip.MustParseAddr(address), size, options)
				if got != want {
					t.Errorf("%s, %d bytes, back %v: %+v, want %+v", address, size, back, got, want)
				}
				return err
			})
			if err != nil {
				t.Errorf("%s, %d bytes, back %v: %v", address, size, back, err)
			}
		})
	}
	both.Wait()
}

func TestPathThatCarries(t *testing.T) {
	nettest.CheckLeaks(t)
	h := newRow(t, 1500, 1500)
	for _, size := range []int{100, 1280, 1500} {
		h.probed(t, false, size, Result{Verdict: Carries})
		h.probed(t, true, size, Result{Verdict: Carries})
	}
}

// TestRouterTells: the router in the middle has a narrow device and reports it.
func TestRouterTells(t *testing.T) {
	h := newRow(t, 1400, 1500)
	h.probed(t, false, 1400, Result{Verdict: Carries})
	h.probed(t, false, 1401, Result{TooBig, 1400})
	h.probed(t, false, 9001, Result{TooBig, 1400})
}

// TestBlackHole: no router reports the narrow device.
func TestBlackHole(t *testing.T) {
	h := newRow(t, 1500, 1400)
	h.probed(t, false, 1400, Result{Verdict: Carries})
	// A virtual Ethernet device carries its MTU plus a VLAN tag.
	h.probed(t, false, 1450, Result{Verdict: TooBig})
}

// TestWayBack: fragmented answers were too big for the way back. The way there
// may be narrow.
func TestWayBack(t *testing.T) {
	h := newRow(t, 1500, 1500)
	for _, to := range []string{"10.9.2.2/32", "fd09:2::2/128"} {
		must(t, h.R.Route(hosts.Route{To: netip.MustParsePrefix(to), Device: "right", TCP: hosts.Metrics{MTU: 1300, LockMTU: true}}))
	}
	h.probed(t, false, 1301, Result{TooBig, 1300})
	h.probed(t, true, 1500, Result{Verdict: Carries})
	must(t, h.B.Route(hosts.Route{To: netip.MustParsePrefix("10.9.1.0/24"), Via: netip.MustParseAddr("10.9.2.1"), TCP: hosts.Metrics{MTU: 1300, LockMTU: true}}))
	h.probed(t, true, 1300, Result{Verdict: Carries})
	// IPv6 adds a fragment header, and all fragments except the last have a
	// multiple of eight bytes.
	must(t, h.B.Route(hosts.Route{To: netip.MustParsePrefix("fd09:1::/64"), Via: netip.MustParseAddr("fd09:2::1"), TCP: hosts.Metrics{MTU: 1296, LockMTU: true}}))
	h.tooBigBack(t, "10.9.2.2", 1300)
	h.tooBigBack(t, "fd09:2::2", 1296)
}

func (h row) tooBigBack(t *testing.T, address string, mtu int) {
	t.Helper()
	must(t, h.A.Do(func() error {
		got, err := From(context.Background(), netip.MustParseAddr(address), 1500, quick)
		if got != (Result{TooBig, mtu}) {
			t.Errorf("%s: %+v, want an MTU of %d", address, got, mtu)
		}
		return err
	}))
}

func TestNobodyAnswers(t *testing.T) {
	h := newRow(t, 1500, 1500)
	must(t, h.A.Do(func() error {
		got, err := Toward(context.Background(), netip.MustParseAddr("10.9.2.99"), 1500, quick)
		if got.Verdict != Silent {
			t.Errorf("the result is %+v", got)
		}
		return err
	}))
}

func TestInterruption(t *testing.T) {
	h := newRow(t, 1500, 1500)
	ctx, cancel := context.WithCancel(context.Background())
	must(t, h.A.Do(func() error {
		time.AfterFunc(50*time.Millisecond, cancel)
		// Without the interruption this would take hours.
		if _, err := Toward(ctx, netip.MustParseAddr("10.9.2.99"), 1500, Options{Wait: time.Hour}); !errors.Is(err, context.Canceled) {
			t.Errorf("probing ended with %v, want %v", err, context.Canceled)
		}
		return nil
	}))
}

func TestBadSize(t *testing.T) {
	for _, size := range []int{-1, 0, 99, 70000} {
		if _, err := Toward(context.Background(), netip.MustParseAddr("127.0.0.1"), size, quick); err == nil {
			t.Errorf("%d bytes were accepted", size)
		}
	}
}

// TestForgedAnswers: a host that has not seen a probe cannot forge an answer by
// guessing. It failed at 1818be3, whose probes contained the process ID.
func TestForgedAnswers(t *testing.T) {
	for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
		p := &prober{address: netip.MustParseAddr(address), sequence: 7}
		rand.Read(p.secret[:])
		reply, header := byte(echoReply6), []byte(nil)
		if p.is4() {
			reply, header = echoReply4, append([]byte{0x45}, make([]byte, 19)...)
		}
		for _, large := range []bool{false, true} {
			sent := make([]byte, 60)
			p.fillEcho(sent, large)
			sent[0] = reply
			if got, ok := p.parseEcho(slices.Concat(header, sent)); !ok || got != large {
				t.Errorf("%s: an answer to a request is taken for %v, %v", address, got, ok)
			}
			for i := range nonceSize {
				forged := slices.Clone(sent)
				forged[echoHeader+i] ^= 2 // the known bytes with one bit wrong
				if _, ok := p.parseEcho(slices.Concat(header, forged)); ok {
					t.Errorf("%s: a forged answer is believed, other than the true one in byte %d", address, i)
				}
				if p.isQuoted(&socket{large: large}, forged) || p.isQuoted(&socket{large: large, udp: true}, forged[echoHeader:]) {
					t.Errorf("%s: a forged error is believed, other than the true one in byte %d", address, i)
				}
			}
			if _, ok := p.parseEcho(slices.Concat(header, sent[:echoHeader])); ok {
				t.Errorf("%s: an answer without a payload is believed", address)
			}
			guessed := slices.Clone(sent[:echoHeader])
			guessed[5] ^= 1
			if p.isQuoted(&socket{large: large}, guessed) {
				t.Errorf("%s: an error about another's request is believed", address)
			}
			if !p.isQuoted(&socket{large: large}, sent[:echoHeader]) || !p.isQuoted(&socket{large: large}, sent) {
				t.Errorf("%s: an error about our request is not believed", address)
			}
		}
	}
}

// FuzzAnswers: any received bytes are harmless.
func FuzzAnswers(f *testing.F) {
	echo := make([]byte, 28)
	echo[0], echo[20] = 0x45, echoReply4
	f.Add(echo, []byte{})
	control := make([]byte, unix.CmsgSpace(16))
	f.Add(echo[20:], control)
	f.Fuzz(func(_ *testing.T, packet, control []byte) {
		for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
			p := &prober{address: netip.MustParseAddr(address)}
			p.parseEcho(packet)
			p.takeError(&socket{large: true}, packet, control)
			p.takeError(&socket{udp: true}, packet, control)
			fragmentSize(control)
		}
	})
}
