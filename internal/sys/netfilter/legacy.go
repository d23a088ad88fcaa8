package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyFamily is what the two families of iptables-legacy differ in. The sizes are those
// of struct ipt_ip and ipt_entry, ip6t_ip6 and ip6t_entry.
type legacyFamily struct {
	number        byte
	names         string
	family, level int
	headBytes     int // of the match on the header, which an entry begins with
	entryBytes    int
	targetAt      int // where target_offset and next_offset are
	gotoFlag      byte
	flagsAt       int
}

// Names of socket options of ip_tables.h; ip6_tables.h has the same numbers.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES
)

var legacyFamilies = []legacyFamily{
	{number: unix.NFPROTO_IPV4, names: "ip_tables_names", family: unix.AF_INET, level: unix.SOL_IP, headBytes: 84, entryBytes: 112, targetAt: 88, flagsAt: 82, gotoFlag: 2},
	{number: unix.NFPROTO_IPV6, names: "ip6_tables_names", family: unix.AF_INET6, level: unix.SOL_IPV6, headBytes: 136, entryBytes: 168, targetAt: 140, flagsAt: 131, gotoFlag: 4},
}

const (
	tableNameBytes    = 32
	infoBytes         = 84 // struct ipt_getinfo
	entriesHeadBytes  = 40 // struct ipt_get_entries
	extensionBytes    = 32 // struct xt_entry_match: size, name, revision
	maxLegacyBytes    = 64 << 20
	legacyHooks       = 5
	standardTarget    = ""
	errorTarget       = "ERROR"
	legacyReturn      = -5 // XT_RETURN
	legacyNameBytes   = 29
	legacyPriorityRaw = -300
)

// legacyPriorities are those of the tables' chains; nat's see only what is translated.
var legacyPriorities = map[string]int32{"raw": legacyPriorityRaw, "mangle": -150, "nat": 0, "filter": 0, "security": 50}

func (r *Ruleset) readLegacy() error {
	for _, f := range legacyFamilies {
		// Asking for a table would load its module: only those that are there are asked for.
		names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if errors.Is(err, os.ErrPermission) { // in a user namespace
			r.unseen = "the tables of iptables-legacy, which the kernel does not show in a user namespace"
			continue
		}
		if err != nil {
			return err
		}
		for _, table := range strings.Fields(string(names)) {
			info, entries, err := f.read(table)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return fmt.Errorf("table %s: %w", table, err)
			}
			chains, err := f.parse(table, info, entries)
			if err != nil {
				return fmt.Errorf("table %s: %w", table, err)
			}
			for _, c := range chains {
				r.add(c)
			}
		}
	}
	return nil
}

// read returns struct ipt_getinfo and the entries of a table.
func (f legacyFamily) read(table string) (info, entries []byte, err error) {
	if len(table) >= tableNameBytes {
		return nil, nil, unix.ENOENT
	}
	fd, err := unix.Socket(f.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	info = make([]byte, infoBytes)
	copy(info, table)
	if err := getsockopt(fd, f.level, getInfo, info); err != nil {
		return nil, nil, err
	}
	size := binary.NativeEndian.Uint32(info[infoBytes-4:])
	if size > maxLegacyBytes {
		return nil, nil, errTooMany
	}
	all := make([]byte, entriesHeadBytes+int(size))
	copy(all, table)
	binary.NativeEndian.PutUint32(all[tableNameBytes:], size)
	err = getsockopt(fd, f.level, getEntries, all)
	if err == unix.EAGAIN {
		err = errInterrupted
	}
	return info, all[entriesHeadBytes:], err
}

func getsockopt(fd, level, name int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

var hookNames = [legacyHooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

var errMalformed = errors.New("malformed")

// legacyEntry is a rule where it stands in its table.
type legacyEntry struct {
	at, next int
	target   string
	verdict  int32 // of a standard target
	isGoto   bool
	expr     []expression
	name     string // of the chain that begins here
}

// parse returns the chains of a table. Base chains begin where struct ipt_getinfo says,
// the others after an entry that has their name; jumps name the place of an entry.
func (f legacyFamily) parse(table string, info, b []byte) (chains []*Chain, err error) {
	if len(info) < infoBytes {
		return nil, errMalformed
	}
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(info[at:]) }
	validHooks := word(tableNameBytes)
	hookAt, policyAt := map[int]int{}, map[int]bool{}
	for h := range legacyHooks {
		if validHooks&(1<<h) != 0 {
			hookAt[int(word(tableNameBytes+4+4*h))] = h
			policyAt[int(word(tableNameBytes+4+4*legacyHooks+4*h))] = true
		}
	}
	var all []legacyEntry
	for at := 0; at < len(b); {
		e, err := f.entry(b, at)
		if err != nil {
			return nil, err
		}
		if len(all) >= maxRules {
			return nil, errTooMany
		}
		all = append(all, e)
		at = e.next
	}
	named := map[int]string{} // chains by the place of their first entry
	for _, e := range all {
		if e.target == errorTarget {
			named[e.next] = e.name
		}
	}
	for at, h := range hookAt {
		named[at] = hookNames[h]
	}
	var c *Chain
	for _, e := range all {
		if name, begins := named[e.at]; begins {
			h, isBase := hookAt[e.at]
			c = &Chain{ChainName: ChainName{Legacy, familyWord(f.number), table, name}, Family: f.number, IsBase: isBase, isNAT: table == "nat"}
			if isBase {
				c.Hook, c.Priority = uint32(h), legacyPriorities[table]
			}
			chains = append(chains, c)
		}
		switch {
		case c == nil || e.target == errorTarget:
			continue
		case policyAt[e.at]:
			c.drops = e.verdict == -drop-1
			continue
		case e.target == standardTarget:
			v := &verdict{}
			switch {
			case e.verdict == int32(e.next) && !e.isGoto:
				v.code = unix.NFT_CONTINUE
			case e.verdict >= 0:
				name, ok := named[int(e.verdict)]
				if !ok {
					return nil, errMalformed
				}
				v.code, v.chain = unix.NFT_JUMP, name
				if e.isGoto {
					v.code = unix.NFT_GOTO
				}
			case e.verdict == -drop-1:
				v.code = drop
			case e.verdict == -accept-1:
				v.code = accept
			case e.verdict == legacyReturn:
				v.code = unix.NFT_RETURN
			default:
				v.unknown = "what another program decides"
			}
			e.expr = append(e.expr, expression{name: "verdict", verdict: v})
		}
		c.Rules = append(c.Rules, Rule{number: len(c.Rules) + 1, expressions: e.expr})
	}
	// A chain ends with an unconditional RETURN, which iptables does not list.
	for _, c := range chains {
		if n := len(c.Rules); !c.IsBase && n > 0 {
			c.Rules = c.Rules[:n-1]
		}
	}
	return chains, nil
}

func (f legacyFamily) entry(b []byte, at int) (e legacyEntry, err error) {
	rest := b[at:]
	if len(rest) < f.entryBytes {
		return e, errMalformed
	}
	targetAt := int(binary.NativeEndian.Uint16(rest[f.targetAt:]))
	next := int(binary.NativeEndian.Uint16(rest[f.targetAt+2:]))
	if targetAt < f.entryBytes || targetAt+extensionBytes > next || next > len(rest) {
		return e, errMalformed
	}
	e = legacyEntry{at: at, next: at + next, isGoto: rest[f.flagsAt]&f.gotoFlag != 0}
	e.expr = append(e.expr, expression{name: "entry", entry: rest[:f.headBytes]})
	for m := f.entryBytes; m < targetAt; {
		size, x, err := extension("match", rest[m:targetAt])
		if err != nil {
			return e, err
		}
		e.expr = append(e.expr, x)
		m += size
	}
	_, target, err := extension("target", rest[targetAt:next])
	if err != nil {
		return e, err
	}
	info := target.attributes[unix.NFTA_TARGET_INFO]
	switch e.target = target.text(unix.NFTA_TARGET_NAME); {
	case e.target == standardTarget:
		if len(info) < 4 {
			return e, errMalformed
		}
		e.verdict = int32(nativeNumber(info[:4]))
	case e.target == errorTarget:
		e.name = unix.ByteSliceToString(info)
	default:
		e.expr = append(e.expr, target)
	}
	return e, nil
}

// extension makes the expression that nftables has for a match or target of iptables.
func extension(kind string, b []byte) (size int, x expression, err error) {
	if len(b) < extensionBytes {
		return 0, x, errMalformed
	}
	size = int(binary.NativeEndian.Uint16(b))
	if size < extensionBytes || size > len(b) {
		return 0, x, errMalformed
	}
	return size, expression{name: kind, attributes: attributes{
		unix.NFTA_MATCH_NAME: b[2 : 2+legacyNameBytes],
		unix.NFTA_MATCH_REV:  {0, 0, 0, b[extensionBytes-1]},
		unix.NFTA_MATCH_INFO: b[extensionBytes:size],
	}}, nil
}
