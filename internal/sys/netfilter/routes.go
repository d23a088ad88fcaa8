package netfilter

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/sorted"
)

// device is a network device.
type device struct {
	index, group uint32
	kind         uint16 // ARPHRD_ETHER
	name         string
	master       uint32
	isVRF        bool
}

func (d *device) paddedName() []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, d.name)
	return b
}

func readDevices() (all map[uint32]*device, err error) {
	all = map[uint32]*device{}
	err = dump(unix.NETLINK_ROUTE, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), func(_ uint16, body []byte) error {
		if len(body) < unix.SizeofIfInfomsg {
			return nil
		}
		d := &device{kind: binary.NativeEndian.Uint16(body[2:]), index: nativeNumber(body[4:8])}
		walk(body[unix.SizeofIfInfomsg:], func(kind uint16, data []byte) {
			switch kind {
			case unix.IFLA_IFNAME:
				d.name = unix.ByteSliceToString(data)
			case unix.IFLA_GROUP:
				d.group = nativeNumber(data)
			case unix.IFLA_MASTER:
				d.master = nativeNumber(data)
			case unix.IFLA_LINKINFO:
				d.isVRF = parse(data).text(unix.IFLA_INFO_KIND) == "vrf"
			}
		})
		all[d.index] = d
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return all, nil
}

// routing is where the packets of a family go.
type routing struct {
	// exact is set if the main and default tables decide, and were read.
	exact bool
	// local are the destinations that are not forwarded: this host's addresses, groups.
	local ranges
	// by has the destinations by the index of the device that packets to them leave by; 0:
	// one of several.
	by map[uint32]ranges
}

// unforwarded are addresses that no forwarded packet has.
var unforwarded = map[byte]ranges{
	unix.NFPROTO_IPV4: rangesOf([]interval{
		{small(0), small(0x00ffffff)}, {small(0x7f000000), small(0x7fffffff)}, // 0/8, 127/8
		{small(0xe0000000), small(0xefffffff)}, {small(0xffffffff), small(0xffffffff)}, // groups, broadcast
	}),
	unix.NFPROTO_IPV6: rangesOf([]interval{
		{small(0), small(1)}, // ::, ::1
		{number{0xfe80 << 48, 0}, number{0xfebf<<48 | 1<<48 - 1, ^uint64(0)}}, // link local
		{number{0xff00 << 48, 0}, lowBits(128)},                               // groups
	}),
}

// ownRulePriority is that of longhaul's routing rule, whose mark a forwarded packet does
// not have.
const ownRulePriority = 1812

func readRouting(family byte) (r routing, err error) {
	af := byte(unix.AF_INET)
	if family == unix.NFPROTO_IPV6 {
		af = unix.AF_INET6
	}
	r.by = map[uint32]ranges{}
	localWays, _, err := readRoutes(af, unix.RT_TABLE_LOCAL)
	if err != nil {
		return r, fmt.Errorf("list local addresses: %w", err)
	}
	var local []interval
	for _, w := range localWays {
		if w.kind != unix.RTN_UNICAST {
			local = append(local, w.interval)
		}
	}
	r.local = rangesOf(append(local, unforwarded[family]...))
	if r.exact, err = rulesAreStandard(af); err != nil {
		return r, fmt.Errorf("list routing rules: %w", err)
	}
	left := one(number{}, lowBits(map[byte]int{unix.AF_INET: 32, unix.AF_INET6: 128}[af]))
	found := map[uint32][]interval{}
	for _, table := range []uint32{unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT} {
		ways, whole, err := readRoutes(af, table)
		if err != nil {
			return r, fmt.Errorf("list routes: %w", err)
		}
		r.exact = r.exact && whole
		var taken []interval
		for _, s := range longestPrefixes(ways) {
			if s.kind == unix.RTN_THROW {
				continue
			}
			taken = append(taken, s.interval)
			if s.kind == unix.RTN_UNICAST {
				found[s.device] = append(found[s.device], left.intersect(ranges{s.interval})...)
			}
		}
		left = left.subtract(rangesOf(taken))
	}
	for index, all := range found {
		r.by[index] = rangesOf(all).subtract(r.local)
	}
	return r, nil
}

// way is a route.
type way struct {
	interval
	bits   int
	metric uint32
	kind   byte   // RTN_UNICAST
	device uint32 // 0: one of several
}

// maxRoutes bounds what is read of a table.
const maxRoutes = 1 << 18

// readRoutes returns the routes of a table; whole is false if they are too many.
func readRoutes(af byte, table uint32) (all []way, whole bool, err error) {
	request := make([]byte, unix.SizeofRtMsg)
	request[0] = af
	request = append(request, attribute(unix.RTA_TABLE, native(table))...)
	whole = true
	err = dump(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, request, func(_ uint16, body []byte) error {
		w, of, ok := readRoute(af, body)
		if !ok || of != table {
			return nil
		}
		if len(all) >= maxRoutes {
			whole = false
			return errEnough
		}
		all = append(all, w)
		return nil
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, true, nil // no such table
	}
	return all, whole, err
}

func readRoute(af byte, b []byte) (w way, table uint32, ok bool) {
	const cloned, dead = 0x200, 1 // RTM_F_CLONED, RTNH_F_DEAD
	if len(b) < unix.SizeofRtMsg || b[0] != af || nativeNumber(b[8:12])&(cloned|dead) != 0 {
		return w, 0, false
	}
	address := make([]byte, 4)
	if af == unix.AF_INET6 {
		address = make([]byte, 16)
	}
	table, w.bits, w.kind = uint32(b[4]), int(b[1]), b[7]
	if w.bits > 8*len(address) {
		return w, 0, false
	}
	special := b[2] != 0 || b[3] != 0 // by source or by type of service
	hops := map[uint32]bool{}
	walk(b[unix.SizeofRtMsg:], func(kind uint16, data []byte) {
		switch kind {
		case unix.RTA_DST:
			copy(address, data)
		case unix.RTA_TABLE:
			table = nativeNumber(data)
		case unix.RTA_PRIORITY:
			w.metric = nativeNumber(data)
		case unix.RTA_OIF:
			hops[nativeNumber(data)] = true
		case unix.RTA_MULTIPATH:
			for len(data) >= unix.SizeofRtNexthop {
				n := int(binary.NativeEndian.Uint16(data))
				if n < unix.SizeofRtNexthop || n > len(data) {
					break
				}
				hops[nativeNumber(data[4:8])] = true
				data = data[min(aligned(n), len(data)):]
			}
		}
	})
	if len(hops) == 1 && !special {
		for index := range hops {
			w.device = index
		}
	}
	low := lowBits(8*len(address) - w.bits)
	w.first = numberOf(address).and(low.not())
	w.last = w.first.or(low)
	return w, table, true
}

// longestPrefixes returns which route the destinations have, in order.
func longestPrefixes(all []way) (found []way) {
	sorted.By(all, func(a, b way) int {
		if a.first != b.first {
			if a.first.less(b.first) {
				return -1
			}
			return 1
		}
		return cmp.Or(a.bits-b.bits, cmp.Compare(a.metric, b.metric))
	})
	var unique []way
	for _, w := range all {
		if n := len(unique); n > 0 && unique[n-1].first == w.first && unique[n-1].bits == w.bits {
			if last := &unique[n-1]; last.metric == w.metric && (last.device != w.device || last.kind != w.kind) {
				last.device = 0 // one of several
			}
			continue
		}
		unique = append(unique, w)
	}
	var open []way // routes that the current address is in, the longest last
	var at number  // up to which destinations have been found
	emit := func(w way, last number) {
		if !last.less(at) {
			w.interval = interval{at, last}
			found = append(found, w)
			at = last.next()
		}
	}
	closeBefore := func(first number) {
		for len(open) > 0 && open[len(open)-1].last.less(first) {
			emit(open[len(open)-1], open[len(open)-1].last)
			open = open[:len(open)-1]
		}
	}
	for _, w := range unique {
		closeBefore(w.first)
		if len(open) > 0 && at.less(w.first) {
			emit(open[len(open)-1], w.first.previous())
		}
		at = w.first
		open = append(open, w)
	}
	for len(open) > 0 {
		w := open[len(open)-1]
		open = open[:len(open)-1]
		if w.last.less(at) || at.isZero() && len(found) > 0 { // past the last address
			continue
		}
		emit(w, w.last)
	}
	return found
}

// rulesAreStandard reports whether the local table, the main one and the default one
// decide, in this order.
func rulesAreStandard(af byte) (standard bool, err error) {
	const (
		headerBytes = 12 // struct fib_rule_hdr
		toTable     = 1  // FR_ACT_TO_TBL
		isMark      = 10 // FRA_FWMARK
		isPriority  = 6  // FRA_PRIORITY
		isTable     = 15 // FRA_TABLE
		isProtocol  = 21 // FRA_PROTOCOL
		noShorter   = 14 // FRA_SUPPRESS_PREFIXLEN
		noGroup     = 13 // FRA_SUPPRESS_IFGROUP
		padding     = 18 // FRA_PAD
	)
	request := make([]byte, headerBytes)
	request[0] = af
	standard = true
	var tables []uint32
	err = dump(unix.NETLINK_ROUTE, unix.RTM_GETRULE, request, func(_ uint16, body []byte) error {
		if len(body) < headerBytes || body[0] != af {
			return nil
		}
		a := parse(body[headerBytes:])
		if nativeNumber(a[isPriority]) == ownRulePriority && a.has(isMark) {
			return nil
		}
		table := uint32(body[4])
		if a.has(isTable) {
			table = nativeNumber(a[isTable])
		}
		plain := body[1] == 0 && body[2] == 0 && body[3] == 0 && body[7] == toTable && nativeNumber(body[8:12]) == 0
		for kind, data := range a {
			switch kind {
			case isPriority, isTable, isProtocol, padding:
			case noShorter, noGroup:
				plain = plain && bytes.Equal(data, native(^uint32(0)))
			default:
				plain = false
			}
		}
		standard = standard && plain
		tables = append(tables, table)
		return nil
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return true, nil
	}
	wanted := []uint32{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN}
	return standard && len(tables) >= 2 && slices.Equal(tables[:2], wanted) && (len(tables) == 2 || len(tables) == 3 && tables[2] == unix.RT_TABLE_DEFAULT), err
}
