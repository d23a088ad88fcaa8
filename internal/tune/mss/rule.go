package mss

import (
	"errors"
	"fmt"
	"net/netip"

	"longhaul/internal/words/ipprefix"
)

// Action is what a rule does to the MSS of a SYN.
type Action string

// The actions.
const (
	Raise Action = "raise" // to a value, if it is lower
	Clamp Action = "clamp" // to a value, if it is higher
	// ClampToRoute: to the MTU of the data's route: its locked mtu metric (the
	// kernel does not apply an unlocked one to forwarded packets), or the learned
	// path MTU, or the device's MTU.
	ClampToRoute Action = "clamp-to-route"
	// ClampToPMTU: to the smaller MTU of the routes of both directions, like the
	// clamping of iptables and nftables.
	ClampToPMTU Action = "clamp-to-pmtu"
)

// needsValue reports whether the action uses a value of the rule.
func (a Action) needsValue() bool { return a == Raise || a == Clamp }

// Rule bounds or raises the size of segments of data. It names the direction of the
// data. The MSS that bounds data is in the SYN or SYN-ACK of its receiver. The rule
// changes that on its way through the device, in either direction.
type Rule struct {
	Device string `json:"device"`
	// To is the destination of the data, From its source. The zero prefix
	// matches any.
	To     netip.Prefix `json:"to,omitzero"`
	From   netip.Prefix `json:"from,omitzero"`
	Port   uint16       `json:"port,omitempty"` // TCP port of either end, 0 for any
	Action Action       `json:"action"`
	MSS    int          `json:"mss,omitempty"` // bytes of payload, for Raise and Clamp
}

// The headers that an MSS does not count: IP's without extensions, and TCP's without
// options (RFC 6691).
const (
	ipv4Headers = 20 + 20
	ipv6Headers = 40 + 20
)

// The minimum MSS of a rule. Linux uses at least 88 bytes. IPv6 links have at least
// 1280 bytes.
const (
	leastIPv4 = 88
	leastIPv6 = 1280 - ipv6Headers
)

// ipVersion returns 4 or 6, or 0 if the rule is for both.
func (r Rule) ipVersion() uint8 {
	for _, p := range []netip.Prefix{r.To, r.From} {
		switch {
		case p.IsValid() && p.Addr().Is4():
			return 4
		case p.IsValid():
			return 6
		}
	}
	return 0
}

// headers returns the bytes that the device's MTU must hold besides the MSS.
func (r Rule) headers() int {
	if r.ipVersion() == 6 {
		return ipv6Headers
	}
	return ipv4Headers
}

// PacketBytes returns the size of IP packets with full segments under the rule.
func (r Rule) PacketBytes() int { return r.MSS + r.headers() }

// Check checks a rule without its device.
func (r Rule) Check() error {
	for _, p := range []netip.Prefix{r.To, r.From} {
		if !p.IsValid() {
			continue
		}
		if err := ipprefix.Check(p); err != nil {
			return err
		}
	}
	if r.To.IsValid() && r.From.IsValid() && r.To.Addr().Is4() != r.From.Addr().Is4() {
		return fmt.Errorf("data from %s never goes to %s: use prefixes of one IP version", r.From, r.To)
	}
	switch r.Action {
	case Raise, Clamp:
		least := leastIPv4
		if r.ipVersion() == 6 {
			least = leastIPv6
		}
		if r.MSS < least {
			return fmt.Errorf("an MSS of %d is too small: the least for IPv%d is %d", r.MSS, max(r.ipVersion(), 4), least)
		}
		if r.MSS > 0xffff {
			return fmt.Errorf("an MSS of %d is too large: the option holds up to 65535", r.MSS)
		}
	case ClampToRoute, ClampToPMTU:
		if r.MSS != 0 {
			return fmt.Errorf("%s takes no value", r.Action)
		}
	default:
		return errors.New("a rule either raises or clamps the MSS")
	}
	return nil
}

// checkOn checks a rule on its device.
func (r Rule) checkOn(d device) error {
	if most := d.mtu - r.headers(); r.Action.needsValue() && r.MSS > most {
		return fmt.Errorf("an MSS of %d does not fit the MTU of %s, %d: use at most %d", r.MSS, d.name, d.mtu, most)
	}
	return nil
}

// sameData reports whether two rules of a device are for the same connections.
func (r Rule) sameData(other Rule) bool {
	return r.To == other.To && r.From == other.From && r.Port == other.Port
}

// compare orders the rules of a device. The first match decides, so narrower rules
// come first.
func compare(a, b numbered) int {
	weight := func(r Rule) int {
		w := 0
		if r.Port != 0 {
			w += 1000
		}
		for _, p := range []netip.Prefix{r.To, r.From} {
			if p.IsValid() {
				w += 1 + p.Bits()
			}
		}
		return w
	}
	if wa, wb := weight(a.rule), weight(b.rule); wa != wb {
		return wb - wa
	}
	return int(a.id) - int(b.id)
}

// numbered is a rule in a table.
type numbered struct {
	id   uint32 // its counters have it too; never 0
	rule Rule
}

// record is a rule in the program's form: struct rule in bpf/mss.bpf.c.
type record struct {
	ID                uint32
	MSS, Port         uint16
	IPVersion, Action uint8
	HasPrefix         uint16 // bit 0: To is set, bit 1: From is
	To, ToMask        [16]byte
	From, FromMask    [16]byte
}

var actionNumbers = map[Action]uint8{Raise: 1, Clamp: 2, ClampToRoute: 3, ClampToPMTU: 4}

func (n numbered) record() record {
	r := record{
		ID: n.id, MSS: uint16(n.rule.MSS), Port: n.rule.Port,
		IPVersion: n.rule.ipVersion(), Action: actionNumbers[n.rule.Action],
	}
	if n.rule.To.IsValid() {
		r.HasPrefix |= 1
		fillPrefix(&r.To, &r.ToMask, n.rule.To)
	}
	if n.rule.From.IsValid() {
		r.HasPrefix |= 2
		fillPrefix(&r.From, &r.FromMask, n.rule.From)
	}
	return r
}

func fillPrefix(address, mask *[16]byte, p netip.Prefix) {
	copy(address[:], p.Masked().Addr().AsSlice())
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
}

func (r record) numbered(device string) (numbered, error) {
	rule := Rule{Device: device, Port: r.Port, MSS: int(r.MSS)}
	for action, number := range actionNumbers {
		if number == r.Action {
			rule.Action = action
		}
	}
	if r.HasPrefix&1 != 0 {
		rule.To = prefixOf(r.To, r.ToMask, r.IPVersion)
	}
	if r.HasPrefix&2 != 0 {
		rule.From = prefixOf(r.From, r.FromMask, r.IPVersion)
	}
	if rule.Check() != nil {
		return numbered{},
			errors.New("another version of longhaul made the table of rules: clear the device's rules and set them again")
	}
	return numbered{r.ID, rule}, nil
}

func prefixOf(address, mask [16]byte, version uint8) netip.Prefix {
	bits := 0
	for _, b := range mask {
		for ; b != 0; b <<= 1 {
			bits++
		}
	}
	if version == 4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(address[:4])), bits)
	}
	return netip.PrefixFrom(netip.AddrFrom16(address), bits)
}
