package netfilter

import (
	"bytes"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/sorted"
)

// Attributes that x/sys does not have.
const (
	setDescription = 9  // NFTA_SET_DESC
	setExpression  = 17 // NFTA_SET_EXPR
	concatenation  = 2  // NFTA_SET_DESC_CONCAT
	fieldBytes     = 1  // NFTA_SET_FIELD_LEN
	keyEnd         = 10 // NFTA_SET_ELEM_KEY_END
	expressions    = 11 // NFTA_SET_ELEM_EXPRESSIONS
	catchAll       = 2  // NFT_SET_ELEM_CATCHALL
)

// Bounds of what is read.
const (
	maxRules    = 1 << 17
	maxElements = 1 << 19
)

var errTooMany = errors.New("too many to read")

const nfgenmsgBytes = 4 // struct nfgenmsg: family, version, resource

// dumpNFTables passes the objects of a kind.
func dumpNFTables(kind uint16, family byte, request []byte, each func(family byte, body []byte) error) error {
	return dump(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|kind, append([]byte{family, unix.NFNETLINK_V0, 0, 0}, request...),
		func(_ uint16, body []byte) error {
			if len(body) < nfgenmsgBytes {
				return nil
			}
			return each(body[0], bytes.Clone(body[nfgenmsgBytes:]))
		})
}

// IsAbsent reports whether an error means that the kernel has no nftables.
func IsAbsent(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// readNFTables reads all tables but those that leave chooses, if it is not nil.
func (r *Ruleset) readNFTables(leave func(family, table string) bool) error {
	type tableKey struct {
		family byte
		name   string
	}
	active := map[tableKey]bool{}
	var tables []tableKey // of active, in the kernel's order
	err := dumpNFTables(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, nil, func(family byte, body []byte) error {
		a := parse(body)
		key := tableKey{family, a.text(unix.NFTA_TABLE_NAME)}
		dormant := a.number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		if isRouted(family) && !dormant && (leave == nil || !leave(familyWord(family), key.name)) {
			active[key], tables = true, append(tables, key)
		}
		return nil
	})
	if IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = dumpNFTables(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(family byte, body []byte) error {
		if a := parse(body); active[tableKey{family, a.text(unix.NFTA_CHAIN_TABLE)}] {
			r.add(nftablesChain(family, a))
		}
		return nil
	})
	if err != nil {
		return err
	}
	count := 0
	for _, t := range tables {
		err := dumpNFTables(unix.NFT_MSG_GETRULE, t.family, nameAttribute(unix.NFTA_RULE_TABLE, t.name), func(family byte, body []byte) error {
			a := parse(body)
			key := chainKey{NFTables, family, a.text(unix.NFTA_RULE_TABLE), a.text(unix.NFTA_RULE_CHAIN)}
			c := r.byName[key]
			if c == nil || key.table != t.name { // kernels before 4.7 list all tables
				return nil
			}
			if count++; count > maxRules {
				return errTooMany
			}
			c.Rules = append(c.Rules, Rule{len(c.Rules) + 1, a.long(unix.NFTA_RULE_HANDLE), nftablesExpressions(a[unix.NFTA_RULE_EXPRESSIONS])})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func nftablesChain(family byte, a attributes) *Chain {
	c := &Chain{
		ChainName: ChainName{NFTables, familyWord(family), a.text(unix.NFTA_CHAIN_TABLE), a.text(unix.NFTA_CHAIN_NAME)},
		Family:    family, isNAT: a.text(unix.NFTA_CHAIN_TYPE) == "nat",
	}
	if hook, ok := a[unix.NFTA_CHAIN_HOOK]; ok {
		h := parse(hook)
		c.IsBase, c.Hook, c.Priority = true, h.number(unix.NFTA_HOOK_HOOKNUM), int32(h.number(unix.NFTA_HOOK_PRIORITY))
		c.drops = a.has(unix.NFTA_CHAIN_POLICY) && a.number(unix.NFTA_CHAIN_POLICY) == drop
	}
	return c
}

func nftablesExpressions(b []byte) (all []expression) {
	walk(b, func(_ uint16, data []byte) {
		a := parse(data)
		all = append(all, expression{name: a.text(unix.NFTA_EXPR_NAME), attributes: parse(a[unix.NFTA_EXPR_DATA])})
	})
	return all
}

type setKey struct {
	family      byte
	table, name string
}

// set is a set or map with its elements.
type set struct {
	unknown  string // why its contents say nothing
	fields   []int  // bytes of each part of a concatenated key
	elements []element
	values   []valueRanges // see byValue
}

// element is an element of a set: keys from first to last, both included.
type element struct {
	first, last []byte // nil: everything that no other element has
	data        []byte // of a map, nested
	unsure      string // why it may not match
}

// set reads a set, once.
func (r *Ruleset) set(family byte, table, name string) *set {
	key := setKey{family, table, name}
	s := r.sets[key]
	if s == nil {
		var err error
		if s, err = readSet(key); err != nil {
			s = &set{unknown: "the set " + name + ", which cannot be read: " + err.Error()}
		}
		r.sets[key] = s
	}
	return s
}

func readSet(key setKey) (s *set, err error) {
	s = &set{}
	found, interval, objects := false, false, false
	request := nameAttribute(unix.NFTA_SET_TABLE, key.table)
	err = dumpNFTables(unix.NFT_MSG_GETSET, key.family, request, func(_ byte, body []byte) error {
		a := parse(body)
		if a.text(unix.NFTA_SET_NAME) != key.name {
			return nil
		}
		found = true
		flags := a.number(unix.NFTA_SET_FLAGS)
		interval, objects = flags&unix.NFT_SET_INTERVAL != 0, flags&unix.NFT_SET_OBJECT != 0
		if flags&unix.NFT_SET_EVAL != 0 {
			s.unknown = "the set " + key.name + ", which packets change"
		}
		walk(parse(a[setDescription])[concatenation], func(_ uint16, field []byte) {
			s.fields = append(s.fields, int(parse(field).number(fieldBytes)))
		})
		return errEnough
	})
	if err != nil || !found || s.unknown != "" {
		if err == nil && !found {
			err = errors.New("it is gone")
		}
		return s, err
	}
	if objects {
		s.unknown = "the map " + key.name
		return s, nil
	}
	var raw []rawElement
	request = append(request, nameAttribute(unix.NFTA_SET_ELEM_LIST_SET, key.name)...)
	err = dumpNFTables(unix.NFT_MSG_GETSETELEM, key.family, request, func(_ byte, body []byte) error {
		walk(body, func(kind uint16, list []byte) {
			if kind == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				walk(list, func(_ uint16, e []byte) { raw = append(raw, readElement(e, key.name)) })
			}
		})
		if len(raw) > maxElements {
			return errTooMany
		}
		return nil
	})
	s.elements = intervals(raw, interval)
	return s, err
}

// rawElement is an element as the kernel lists it: an interval has its start and, as an
// element of its own, what follows its end.
type rawElement struct {
	element
	ends bool
}

func readElement(b []byte, set string) (e rawElement) {
	// Without maps: a set may have 100 000 of them.
	key := func(data []byte) (value []byte) {
		walk(data, func(kind uint16, v []byte) {
			if kind == unix.NFTA_DATA_VALUE {
				value = v
			}
		})
		return value
	}
	isCatchAll := false
	walk(b, func(kind uint16, data []byte) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.first = key(data)
		case keyEnd:
			e.last = key(data)
		case unix.NFTA_SET_ELEM_DATA:
			e.data = data
		case unix.NFTA_SET_ELEM_FLAGS:
			if len(data) == 4 {
				e.ends, isCatchAll = data[3]&unix.NFT_SET_ELEM_INTERVAL_END != 0, data[3]&catchAll != 0
			}
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.unsure = "an element of the set " + set + " that expires"
		case unix.NFTA_SET_ELEM_EXPR:
			if parse(data).text(unix.NFTA_EXPR_NAME) != "counter" {
				e.unsure = "an element of the set " + set + " with a limit"
			}
		case expressions:
			walk(data, func(_ uint16, x []byte) {
				if parse(x).text(unix.NFTA_EXPR_NAME) != "counter" {
					e.unsure = "an element of the set " + set + " with a limit"
				}
			})
		}
	})
	if isCatchAll {
		e.first, e.last = nil, nil
	}
	return e
}

// intervals makes elements of what the kernel lists.
func intervals(raw []rawElement, isInterval bool) (all []element) {
	hasEnd := slices.ContainsFunc(raw, func(e rawElement) bool { return e.last != nil })
	if isInterval && !hasEnd {
		// Ends stand before starts of the same value: one interval ends where the next begins.
		sorted.By(raw, func(a, b rawElement) int {
			if c := bytes.Compare(a.first, b.first); c != 0 || a.ends == b.ends {
				return c
			}
			if a.ends {
				return -1
			}
			return 1
		})
	}
	for i, e := range raw {
		one := e.element
		switch {
		case e.ends:
			continue
		case one.first == nil, one.last != nil:
		case !isInterval || hasEnd:
			one.last = one.first
		case i+1 < len(raw) && len(raw[i+1].first) == len(one.first):
			one.last = decremented(raw[i+1].first)
		default:
			one.last = bytes.Repeat([]byte{0xff}, len(one.first))
		}
		if one.first == nil && one.last != nil || one.last == nil && one.first != nil || len(one.first) != len(one.last) {
			continue // not an element that this kernel documents
		}
		all = append(all, one)
	}
	return all
}

// decremented is the value before; zero stays.
func decremented(b []byte) []byte {
	d := bytes.Clone(b)
	for i := len(d) - 1; i >= 0; i-- {
		if d[i]--; d[i] != 0xff {
			return d
		}
	}
	return b
}
