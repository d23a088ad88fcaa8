package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/internal/units"
)

// wanRTT is the round trip of the handshake from which a leg counts as one
// over the WAN, where nobody said which legs are. Anything in a building is
// below it.
const wanRTT = 2 * time.Millisecond

// Tunnel sets up the legs of one tunnel's flows. Its methods may be called
// from several threads at once, and do not block.
type Tunnel struct {
	side WANSide
	host host
	log  *slog.Logger

	handshakeRTT func(fd int) time.Duration

	lan, wan profile
	// upgrade is what a WAN leg needs that was prepared as a LAN leg: an
	// accepted one, and a dialed one at once.
	upgrade, upgradeDialed []setting

	mu    sync.Mutex
	lacks map[string]Lack // by what they are about
	order []string
}

// profile is one kind of leg, worked out.
type profile struct {
	kind    string
	options Options
	cc      choice
	all     []setting // for a listening socket, which may have been set up before
	first   []setting // for a new socket
	lasting []setting // for a new socket whose connection lasts
}

// New works out the settings of both kinds of leg. It tries out what the
// kernel offers in the calling thread's network namespace. An error says
// which option is wrong; an option that merely cannot be had here is a Lack.
// A nil log discards.
func New(lan, wan Options, side WANSide, log *slog.Logger) (*Tunnel, error) {
	if side == "" {
		side = WANAuto
	}
	if err := validate(lan, wan, side); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h, err := probeHost()
	if err != nil {
		return nil, err
	}
	return newTunnel(lan, wan, side, h, tryCC, log), nil
}

func newTunnel(lan, wan Options, side WANSide, h host, try func(string) error, log *slog.Logger) *Tunnel {
	t := &Tunnel{side: side, host: h, log: log, handshakeRTT: handshakeRTT, lacks: map[string]Lack{}}
	t.lan = t.profile(LAN, lan, try)
	t.wan = t.profile(WAN, wan, try)
	t.upgrade = difference(t.lan.all, t.wan.all)
	_, t.upgradeDialed = partition(t.upgrade, isLasting)
	for _, p := range []*profile{&t.lan, &t.wan} {
		if t.uses(p.kind) {
			t.reportLacks(p)
		}
	}
	return t
}

func (t *Tunnel) profile(kind string, o Options, try func(string) error) profile {
	p := profile{kind: kind, options: o, cc: chooseCC(kind, o.CongestionControl, t.host, try)}
	p.all = o.settings(kind, p.cc, t.host)
	_, changed := partition(p.all, func(s setting) bool { return s.fallback })
	p.lasting, p.first = partition(changed, isLasting)
	return p
}

func isLasting(s setting) bool { return s.lasting }

// tryCC tries an algorithm on a socket that is then thrown away.
func tryCC(name string) error {
	fd, err := scratchSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION, name)
}

// reportLacks reports what is known before the first flow.
func (t *Tunnel) reportLacks(p *profile) {
	if p.cc.lack != (Lack{}) {
		t.lack(p.kind+" congestion control", p.cc.lack)
	}
	if p.kind == WAN && t.host.slowStartAfterIdle && !windowSurvivesIdle(p.cc.name) {
		t.lack("idle", Lack{
			What:   fmt.Sprintf("a congestion window that outlives an idle second on wan legs, which use %s", p.cc.name),
			Remedy: "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
		})
	}
	if p.options.MTUProbing && !t.host.mtuProbing {
		t.lack("mtu probing", Lack{
			What:   fmt.Sprintf("path MTU probing on %s legs", p.kind),
			Remedy: "sysctl -w net.ipv4.tcp_mtu_probing=1",
		})
	}
	if p.options.endsClosedWindows(t.host) {
		t.lack(p.kind+" user timeout", Lack{
			What:   fmt.Sprintf("a user timeout of %v on %s legs that spares a peer which lives but does not read", p.options.UserTimeout, p.kind),
			Remedy: userTimeoutRemedy(t.host),
		})
	}
}

func userTimeoutRemedy(h host) string {
	least := retransmissionLimit(h.retries2, leastRTOMax) + leastRTOMax
	if h.canCapRTO {
		return fmt.Sprintf("set a user timeout of %v or more", least)
	}
	return fmt.Sprintf("run Linux 6.15 or newer and set a user timeout of %v or more", least)
}

// Lacks lists what legs should have and could not get so far, oldest first.
// Each was logged once.
func (t *Tunnel) Lacks() []Lack {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Lack, 0, len(t.order))
	for _, about := range t.order {
		list = append(list, t.lacks[about])
	}
	return list
}

// lack notes and logs the first lack of its kind.
func (t *Tunnel) lack(about string, l Lack) {
	t.mu.Lock()
	_, said := t.lacks[about]
	if !said {
		t.lacks[about] = l
		t.order = append(t.order, about)
	}
	t.mu.Unlock()
	if !said {
		t.log.Warn("cannot have "+l.What, "remedy", l.Remedy)
	}
}

// fixed returns the kind of leg that the operator declared the accepted or
// dialed legs to be, or "".
func (t *Tunnel) fixed(dialed bool) string {
	switch t.side {
	case WANBoth:
		return WAN
	case WANNone:
		return LAN
	case WANListen, WANForward:
		if dialed == (t.side == WANForward) {
			return WAN
		}
		return LAN
	}
	return ""
}

// uses reports whether there can be legs of the kind.
func (t *Tunnel) uses(kind string) bool {
	for _, dialed := range []bool{false, true} {
		if f := t.fixed(dialed); f == "" || f == kind {
			return true
		}
	}
	return false
}

func (t *Tunnel) of(kind string) *profile {
	if kind == WAN {
		return &t.wan
	}
	return &t.lan
}

// Prepare sets what must stand before the handshake, on a listening socket
// (dialed false) or on one that is about to connect. A listening socket may
// be prepared again, by another Tunnel too.
func (t *Tunnel) Prepare(fd int, dialed bool) error {
	p := t.of(t.fixed(dialed))
	list := p.first
	if !dialed {
		list = p.all
	}
	if err := t.apply(fd, list); err != nil {
		return err
	}
	if size := t.receiveBefore(dialed); size > 0 {
		_, err := receiving.setAsked(fd, size, t.host)
		return err
	}
	if !dialed && t.host.canUnlock {
		return unlockReceive(fd, t.host)
	}
	return nil
}

// Lasting sets, on a dialed leg, what only a connection needs that lasts:
// keepalive. An accepted leg has it from its listener. side is what
// Established returned.
func (t *Tunnel) Lasting(fd int, side string) error {
	return t.apply(fd, t.of(side).lasting)
}

// receiveBefore is the size that the receive buffer must have at the
// handshake, because the largest window it can ever announce is fixed there.
// 0 leaves it to autotuning.
func (t *Tunnel) receiveBefore(dialed bool) int {
	size := 0
	for _, kind := range []string{LAN, WAN} {
		if f := t.fixed(dialed); f != "" && f != kind {
			continue
		}
		asked := t.of(kind).options.ReceiveBuffer
		if asked == 0 && kind == WAN && t.wide(dialed) {
			asked = maxBuffer
		}
		size = max(size, asked)
	}
	return size
}

// wide reports whether legs that may be WAN legs begin with a receive buffer
// of the largest size and get the right one later.
func (t *Tunnel) wide(dialed bool) bool {
	return t.host.largestWindow() < maxBuffer && t.host.canForce && (t.host.canUnlock || t.fixed(dialed) == WAN)
}

// Established sets what depends on the path once the handshake is done. It
// returns what it found the leg to be, LAN or WAN, and in one clause what was
// asked for and could not be had, empty when the leg is as asked.
func (t *Tunnel) Established(fd int, dialed bool) (side, degraded string) {
	kind := t.fixed(dialed)
	var rtt time.Duration
	if kind != LAN {
		rtt = t.handshakeRTT(fd)
	}
	var problems []string
	if kind == "" {
		kind = LAN
		if rtt > wanRTT {
			kind = WAN
			upgrade := t.upgrade
			if dialed {
				upgrade = t.upgradeDialed
			}
			if err := t.apply(fd, upgrade); err != nil {
				problems = append(problems, err.Error())
			}
		}
	}
	p := t.of(kind)
	if p.cc.degraded != "" {
		problems = append(problems, p.cc.degraded)
	}
	for _, problem := range []string{t.sendAfter(fd, p, rtt), t.receiveAfter(fd, p, rtt, t.receiveBefore(dialed))} {
		if problem != "" {
			problems = append(problems, problem)
		}
	}
	return kind, strings.Join(problems, "; ")
}

// sendAfter sets the send buffer of an established leg. It returns what could
// not be had.
func (t *Tunnel) sendAfter(fd int, p *profile, rtt time.Duration) string {
	switch asked := p.options.SendBuffer; {
	case asked > 0:
		return t.setAsked(fd, sending, asked, p)
	case p.kind == WAN:
		w := sendWant(p.options.PathRateBps, rtt)
		s := ladder(w, t.host.tcpWmem[2], t.host.wmemMax, t.host.canForce)
		return t.setSized(fd, sending, s, w.size, p, rtt)
	}
	return ""
}

// receiveAfter does the same for the receive buffer, which had the size
// before at the handshake.
func (t *Tunnel) receiveAfter(fd int, p *profile, rtt time.Duration, before int) string {
	switch asked := p.options.ReceiveBuffer; {
	case asked > 0:
		if asked == before && (asked <= t.host.rmemMax || t.host.canForce) {
			return ""
		}
		return t.setAsked(fd, receiving, asked, p)
	case p.kind == WAN:
		w := receiveWant(p.options.PathRateBps, rtt, p.cc.name)
		s := ladder(w, t.host.tcpRmem[2], t.host.rmemMax, t.host.canForce)
		if s.way == autotune && before > 0 && !t.host.canUnlock {
			s = sizing{way: force, size: w.size}
		}
		if s.way != autotune || before == 0 {
			return t.setSized(fd, receiving, s, w.size, p, rtt)
		}
	}
	if before > 0 {
		return clause(giveBack(fd, t.host))
	}
	return ""
}

func (t *Tunnel) setAsked(fd int, d direction, size int, p *profile) string {
	s, err := d.setAsked(fd, size, t.host)
	if err != nil {
		return err.Error()
	}
	if !s.short {
		return ""
	}
	sysctl := "wmem_max"
	if d == receiving {
		sysctl = "rmem_max"
	}
	t.lack(p.kind+" "+d.name, Lack{
		What:   fmt.Sprintf("the %s of %s that is configured for %s legs (they get %s)", d.name, units.FormatSize(float64(size)), p.kind, units.FormatSize(float64(s.size))),
		Remedy: fmt.Sprintf("sysctl -w net.core.%s=%d", sysctl, size),
	})
	return fmt.Sprintf("%s %s of %s", d.name, units.FormatSize(float64(s.size)), units.FormatSize(float64(size)))
}

func (t *Tunnel) setSized(fd int, d direction, s sizing, size int, p *profile, rtt time.Duration) string {
	if s.way != autotune {
		if err := d.set(fd, s.way, s.size); err != nil {
			return err.Error()
		}
	}
	if !s.short {
		return ""
	}
	rate := p.options.PathRateBps
	if rate == 0 {
		rate = defaultPathRateBps
	}
	now := t.host.tcpWmem
	if d == receiving {
		now = t.host.tcpRmem
	}
	t.lack(p.kind+" "+d.name, Lack{
		What:   fmt.Sprintf("%s %s for %s at %s", d.name, units.FormatSize(float64(size)), units.FormatRate(float64(rate)), formatRTT(rtt)),
		Remedy: d.sysctlRemedy(size, now),
	})
	return fmt.Sprintf("%s %s of %s", d.name, units.FormatSize(float64(s.size)), units.FormatSize(float64(size)))
}

func clause(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// handshakeRTT is the round trip of a fresh connection's handshake. Where the
// kernel has no sample, because packets of the handshake were lost, the path
// is hardly a LAN's.
func handshakeRTT(fd int) time.Duration {
	var info unix.TCPInfo
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || info.Rtt == 0 {
		return guessedRTT
	}
	return time.Duration(info.Rtt) * time.Microsecond
}

// unlockReceive undoes what an earlier Prepare did to a listening socket.
func unlockReceive(fd int, h host) error {
	locks, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	if err != nil || locks&unix.SOCK_RCVBUF_LOCK == 0 {
		return nil
	}
	return giveBack(fd, h)
}

// apply sets the settings in turn. A socket that is not IPv6 has no traffic
// class, and one that is carries IPv4 too and needs both marks.
func (t *Tunnel) apply(fd int, list []setting) error {
	for _, s := range list {
		if s.level == unix.SOL_IPV6 && !isIPv6(fd) {
			continue
		}
		err := s.set(fd)
		if s.option == unix.TCP_CONGESTION && s.level == unix.SOL_TCP && errors.Is(err, unix.ENOENT) {
			// It was there when the tunnel was made. A flow is worth more.
			t.lack("unloaded "+s.text, Lack{
				What:   fmt.Sprintf("congestion control %s, which was unloaded meanwhile (new legs use %s)", s.text, t.host.defaultCC),
				Remedy: ccRemedy(s.text, err),
			})
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isIPv6(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_INET6
}
