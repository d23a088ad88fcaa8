package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/units"
)

// wanRTT is the handshake's round trip above which a leg is a WAN leg if no
// side is configured. Anything in a building is below it.
const wanRTT = 2 * time.Millisecond

// Tunnel sets up the legs of one tunnel's flows. Its methods do not block and
// may be called from several threads at once.
type Tunnel struct {
	side    WANSide
	lanes   WANSide // see Legs
	memory  Memory
	largest int // mostBuffer of the memory
	host    host
	log     *slog.Logger

	handshakeRTT func(fd int) time.Duration

	lan, wan profile
	// upgrade turns a leg prepared as a LAN leg into a WAN leg: an accepted
	// one, and a new dialed one.
	upgrade, upgradeDialed []setting
	early                  bool // see Early

	mu    sync.Mutex
	lacks map[string]Lack // by subject
	order []string
}

// profile is the resolved configuration of one kind of leg.
type profile struct {
	kind    string
	options Options
	cc      choice
	all     []setting // for a listening socket, which may be prepared repeatedly
	first   []setting // for a new socket
	lasting []setting // for a dialed socket that lives long
}

// Legs are the settings of a tunnel's legs.
type Legs struct {
	LAN, WAN Options
	Side     WANSide // empty: WANAuto
	// Lanes are the legs that are lanes of a pair, most likely over the WAN:
	// WANListen at its far relay, WANForward at its near one, or WANBoth. Empty
	// or WANNone: none are.
	Lanes  WANSide
	Memory Memory
}

// Memory is what bounds the buffers of WAN legs.
type Memory struct {
	Bytes int64 // that this process may use; 0: not known
	ByUs  bool  // memory_limit says so, and not the host or its control group
}

// New resolves the settings of both kinds of leg. It probes the kernel in the
// calling thread's network namespace. An error names an invalid option; an
// unavailable option is a Lack. A nil log discards.
func New(l Legs, log *slog.Logger) (*Tunnel, error) {
	if l.Side == "" {
		l.Side = WANAuto
	}
	if err := validate(l.LAN, l.WAN, l.Side); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h, err := probeHost()
	if err != nil {
		return nil, err
	}
	return newTunnel(l, h, tryCC, log), nil
}

func newTunnel(l Legs, h host, try func(string) error, log *slog.Logger) *Tunnel {
	t := &Tunnel{side: l.Side, lanes: l.Lanes, memory: l.Memory, largest: mostBuffer(l.Memory.Bytes), host: h, log: log,
		handshakeRTT: handshakeRTT, lacks: map[string]Lack{}}
	t.lan = t.profile(LAN, l.LAN, try)
	t.wan = t.profile(WAN, l.WAN, try)
	t.upgrade = difference(t.lan.all, t.wan.all)
	_, t.upgradeDialed = partition(t.upgrade, isLasting)
	t.early = slices.ContainsFunc(t.upgradeDialed, func(s setting) bool { return !s.forBulk() })
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

// tryCC tries an algorithm on a temporary socket.
func tryCC(name string) error {
	fd, err := scratchSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptString(fd, unix.SOL_TCP, unix.TCP_CONGESTION, name)
}

// reportLacks reports the lacks known before the first flow.
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
	shortest := retransmissionLimit(h.retries2, minRTOMax) + minRTOMax
	if h.canCapRTO {
		return fmt.Sprintf("set a user timeout of %v or more", shortest)
	}
	return fmt.Sprintf("run Linux 6.15 or newer and set a user timeout of %v or more", shortest)
}

// Lacks lists the lacks so far, oldest first. Each was logged once.
func (t *Tunnel) Lacks() []Lack {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]Lack, 0, len(t.order))
	for _, about := range t.order {
		list = append(list, t.lacks[about])
	}
	return list
}

// lack records and logs the first lack of its subject.
func (t *Tunnel) lack(about string, l Lack) {
	t.mu.Lock()
	_, known := t.lacks[about]
	if !known {
		t.lacks[about] = l
		t.order = append(t.order, about)
	}
	t.mu.Unlock()
	if !known {
		t.log.Warn("cannot have "+l.What, "remedy", l.Remedy)
	}
}

// fixed returns the configured kind of the accepted or dialed legs, or "" for
// auto.
func (t *Tunnel) fixed(dialed bool) string { return t.side.fixed(dialed) }

// fixed returns the kind of the accepted or dialed legs, or "" for auto.
func (s WANSide) fixed(dialed bool) string {
	switch s {
	case WANBoth:
		return WAN
	case WANNone:
		return LAN
	case WANListen, WANForward:
		if dialed == (s == WANForward) {
			return WAN
		}
		return LAN
	}
	return ""
}

// MayBe reports whether a leg, dialed or accepted, can be of the kind, LAN or WAN.
func (t *Tunnel) MayBe(kind string, dialed bool) bool {
	f := t.fixed(dialed)
	return f == "" || f == kind
}

// uses reports whether the tunnel can have legs of the kind.
func (t *Tunnel) uses(kind string) bool { return t.MayBe(kind, false) || t.MayBe(kind, true) }

func (t *Tunnel) of(kind string) *profile {
	if kind == WAN {
		return &t.wan
	}
	return &t.lan
}

// Prepare sets the options that must precede the handshake, on a listening
// socket (dialed false) or one that is about to connect. A listening socket may
// be prepared again, even by another Tunnel.
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
		_, err := receiving.setConfigured(fd, size, t.host)
		return err
	}
	if !dialed && t.host.canUnlock {
		return unlockReceive(fd, t.host)
	}
	return nil
}

// Lasting sets keepalive on a dialed leg that lives long; an accepted leg has
// inherited it. side is the result of Established.
func (t *Tunnel) Lasting(fd int, side string) error {
	return t.apply(fd, t.of(side).lasting)
}

// receiveBefore is the size of the receive buffer at the handshake, which fixes
// the largest window that the connection can announce. 0 means autotuning.
func (t *Tunnel) receiveBefore(dialed bool) int {
	size := 0
	for _, kind := range []string{LAN, WAN} {
		if !t.MayBe(kind, dialed) {
			continue
		}
		configured := t.of(kind).options.ReceiveBuffer
		if configured == 0 && kind == WAN && t.wide(dialed) {
			configured = t.widest(dialed)
		}
		size = max(size, configured)
	}
	return size
}

// wide reports whether possible WAN legs begin with the largest receive buffer
// and get the right one later.
func (t *Tunnel) wide(dialed bool) bool {
	return t.host.maxWindow() < t.widest(dialed) && t.host.canForce && (t.host.canUnlock || t.fixed(dialed) == WAN)
}

// widest is the largest receive buffer that a leg begins with. Most legs of an
// unknown side are LAN legs, for which a window is rounded to 1 KiB and not to 16,
// and which nothing has to make small again if the sysctls allow the usual one.
func (t *Tunnel) widest(dialed bool) int {
	if t.fixed(dialed) == WAN || t.lanes.fixed(dialed) == WAN {
		return t.largest
	}
	return usualBuffer
}

// Early reports whether a leg needs Established before its first bytes: its side is not known before
// the handshake, and WAN legs have options that apply to each segment.
func (t *Tunnel) Early(dialed bool) bool { return t.early && t.fixed(dialed) == "" }

// Established sets the options that depend on the path after the handshake.
// side is the kind of leg, LAN or WAN. degraded names, in one clause, settings
// that are unavailable; empty if there are none.
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

// sendAfter sets the send buffer of an established leg. It returns the clause
// for degraded.
func (t *Tunnel) sendAfter(fd int, p *profile, rtt time.Duration) string {
	switch configured := p.options.SendBuffer; {
	case configured > 0:
		return t.setConfigured(fd, sending, configured, p)
	case p.kind == WAN:
		w := sendWant(p.options.PathRateBps, rtt)
		s := chooseSizing(w.within(t.largest), t.host.tcpWmem[2], t.host.wmemMax, t.host.canForce)
		return t.setSized(fd, sending, s, w, p, rtt, t.largest)
	}
	return ""
}

// receiveAfter does the same for the receive buffer, whose size at the
// handshake was before.
func (t *Tunnel) receiveAfter(fd int, p *profile, rtt time.Duration, before int) string {
	switch configured := p.options.ReceiveBuffer; {
	case configured > 0:
		if configured == before && (configured <= t.host.rmemMax || t.host.canForce) {
			return ""
		}
		return t.setConfigured(fd, receiving, configured, p)
	case p.kind == WAN:
		w := receiveWant(p.options.PathRateBps, rtt, p.cc.name)
		most := t.largest
		if t.host.canForce { // else the sysctls bound it
			most = min(most, max(before, usualBuffer, t.host.maxWindow())) // the handshake has fixed the window
		}
		s := chooseSizing(w.within(most), t.host.tcpRmem[2], t.host.rmemMax, t.host.canForce)
		if s.method == autotune && before > 0 && !t.host.canUnlock {
			s = sizing{method: force, size: min(w.size, most)}
		}
		if s.method != autotune || before == 0 {
			degraded := t.setSized(fd, receiving, s, w, p, rtt, most)
			if s.method != autotune && before == 0 {
				liftWindow(fd, s.size)
			}
			return degraded
		}
	}
	if before > 0 {
		return clause(restoreAutotuning(fd, t.host))
	}
	return ""
}

func (t *Tunnel) setConfigured(fd int, d direction, size int, p *profile) string {
	s, err := d.setConfigured(fd, size, t.host)
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

// setSized sets a buffer for a path, of which most bytes is the bound.
func (t *Tunnel) setSized(fd int, d direction, s sizing, w want, p *profile, rtt time.Duration, most int) string {
	if s.method != autotune {
		if err := d.set(fd, s.method, s.size); err != nil {
			return err.Error()
		}
	}
	size, why, remedy := min(w.size, most), "", ""
	switch {
	case s.short:
		now := t.host.tcpWmem
		if d == receiving {
			now = t.host.tcpRmem
		}
		remedy = d.sysctlRemedy(size, now)
	case w.fill <= most:
		return ""
	case most < t.largest:
		size, remedy = w.fill, "name the leg's side with wan_side, so that it begins with a wider window"
	default:
		size, why, remedy = w.fill, ", limited by memory", t.memory.remedy(w.fill)
	}
	rate := p.options.PathRateBps
	if rate == 0 {
		rate = defaultPathRateBps
	}
	t.lack(p.kind+" "+d.name+why, Lack{
		What:   fmt.Sprintf("%s %s for %s at %s%s", d.name, units.FormatSize(float64(size)), units.FormatRate(float64(rate)), formatRTT(rtt), why),
		Remedy: remedy,
	})
	return fmt.Sprintf("%s %s of %s%s", d.name, units.FormatSize(float64(s.size)), units.FormatSize(float64(size)), why)
}

// remedy says how a leg gets a buffer of so many bytes.
func (m Memory) remedy(size int) string {
	if size > largestBuffer {
		return "use a pair with several lanes: TCP has no larger window"
	}
	needs := units.FormatSize(float64(roundUpPowerOfTwo(size * bufferShare)))
	if m.ByUs {
		return "raise memory_limit to " + needs
	}
	return "give the relay's host or control group " + needs + " of memory"
}

func clause(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// handshakeRTT is the round trip of a connection's handshake, or a shorter one since: later
// ones include the delays of acknowledgements. A missing sample means lost packets, which
// hardly occur on a LAN.
func handshakeRTT(fd int) time.Duration {
	var info unix.TCPInfo
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || info.Rtt == 0 {
		return guessedRTT
	}
	rtt := info.Rtt
	if size >= uint32(unsafe.Offsetof(info.Min_rtt)+unsafe.Sizeof(info.Min_rtt)) {
		rtt = min(rtt, info.Min_rtt)
	}
	return time.Duration(rtt) * time.Microsecond
}

// unlockReceive reverts the receive buffer of an earlier Prepare on a listening
// socket.
func unlockReceive(fd int, h host) error {
	locks, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	if err != nil || locks&unix.SOCK_RCVBUF_LOCK == 0 {
		return nil
	}
	return restoreAutotuning(fd, h)
}

// apply sets the settings in order. An IPv4 socket has no traffic class; an
// IPv6 socket may carry IPv4 and gets both marks.
func (t *Tunnel) apply(fd int, list []setting) error {
	for _, s := range list {
		if s.level == unix.SOL_IPV6 && !isIPv6(fd) {
			continue
		}
		err := s.set(fd)
		if s.option == unix.TCP_CONGESTION && s.level == unix.SOL_TCP && errors.Is(err, unix.ENOENT) {
			// The algorithm was unloaded after New. Keep the flow and report
			// the lack.
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
