package intercept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The rules of other programs are read as the kernel has them: package nftables drops
// the expressions that it does not know.

// foreignChain is a chain of any program.
type foreignChain struct {
	family      byte // NFPROTO_INET
	table, name string
	base        bool
	hook        uint32
	priority    int32
	policy      uint32
	rules       [][]foreignExpr
}

func (c foreignChain) String() string {
	return fmt.Sprintf("%s %s %s", familyWord(c.family), c.table, c.name)
}

func familyWord(family byte) string {
	switch family {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	}
	return fmt.Sprint("family ", family)
}

// foreignExpr is an expression with its attributes.
type foreignExpr struct {
	name string
	attributes
}

// attributes are netlink attributes by type.
type attributes map[uint16][]byte

func parse(b []byte) attributes {
	a := attributes{}
	list, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return a
	}
	for _, one := range list {
		a[one.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = one.Data
	}
	return a
}

func (a attributes) number(of uint16) uint32 {
	if b := a[of]; len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a attributes) text(of uint16) string { return unix.ByteSliceToString(a[of]) }

// value is the data of a nested value.
func (a attributes) value(of uint16) []byte { return parse(a[of])[unix.NFTA_DATA_VALUE] }

// reader asks the kernel for nftables.
type reader struct{ conn *netlink.Conn }

func newReader() (reader, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	return reader{conn}, err
}

// dump returns the objects of a kind in all tables, or of those that request names.
func (r reader) dump(kind uint16, family byte, request []netlink.Attribute) (found []foreignObject, err error) {
	body, err := netlink.MarshalAttributes(request)
	if err != nil {
		return nil, err
	}
	const headerBytes = 4 // struct nfgenmsg: family, version, resource
	messages, err := r.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, body...),
	})
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if len(m.Data) >= headerBytes {
			found = append(found, foreignObject{m.Data[0], parse(m.Data[headerBytes:])})
		}
	}
	return found, nil
}

type foreignObject struct {
	family byte
	attributes
}

// chains returns all chains with their rules.
func (r reader) chains() ([]foreignChain, error) {
	objects, err := r.dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	var all []foreignChain
	for _, o := range objects {
		c := foreignChain{family: o.family, table: o.text(unix.NFTA_CHAIN_TABLE), name: o.text(unix.NFTA_CHAIN_NAME), policy: nfAccept}
		if hook, ok := o.attributes[unix.NFTA_CHAIN_HOOK]; ok {
			h := parse(hook)
			c.base, c.hook, c.priority = true, h.number(unix.NFTA_HOOK_HOOKNUM), int32(h.number(unix.NFTA_HOOK_PRIORITY))
			if _, ok := o.attributes[unix.NFTA_CHAIN_POLICY]; ok {
				c.policy = o.number(unix.NFTA_CHAIN_POLICY)
			}
		}
		all = append(all, c)
	}
	rules, err := r.dump(unix.NFT_MSG_GETRULE, unix.NFPROTO_UNSPEC, nil)
	if err != nil {
		return nil, fmt.Errorf("list the rules of nftables: %w", err)
	}
	for _, o := range rules {
		i := slices.IndexFunc(all, func(c foreignChain) bool {
			return c.family == o.family && c.table == o.text(unix.NFTA_RULE_TABLE) && c.name == o.text(unix.NFTA_RULE_CHAIN)
		})
		if i >= 0 {
			all[i].rules = append(all[i].rules, expressions(o.attributes[unix.NFTA_RULE_EXPRESSIONS]))
		}
	}
	return all, nil
}

func expressions(b []byte) (all []foreignExpr) {
	list, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return nil
	}
	for _, one := range list {
		a := parse(one.Data)
		all = append(all, foreignExpr{a.text(unix.NFTA_EXPR_NAME), parse(a[unix.NFTA_EXPR_DATA])})
	}
	return all
}

// elements returns the elements of a set, in the order of the kernel.
func (r reader) elements(family byte, table, set string) ([]attributes, error) {
	objects, err := r.dump(unix.NFT_MSG_GETSETELEM, family, []netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: append([]byte(table), 0)},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: append([]byte(set), 0)},
	})
	if err != nil {
		return nil, err
	}
	var all []attributes
	for _, o := range objects {
		list, err := netlink.UnmarshalAttributes(o.attributes[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
		if err != nil {
			return nil, err
		}
		for _, one := range list {
			all = append(all, parse(one.Data))
		}
	}
	return all, nil
}

// marksOf returns the bits of a packet's mark that a rule tests for or sets.
func marksOf(rule []foreignExpr) (bits uint32) {
	holdsMark := map[uint32]bool{} // registers with a mark
	constant := map[uint32]uint32{}
	for _, e := range rule {
		switch e.name {
		case "meta":
			if e.number(unix.NFTA_META_KEY) != unix.NFT_META_MARK {
				continue
			}
			if _, sets := e.attributes[unix.NFTA_META_SREG]; sets {
				bits |= constant[e.number(unix.NFTA_META_SREG)]
			} else {
				holdsMark[e.number(unix.NFTA_META_DREG)] = true
			}
		case "immediate":
			constant[e.number(unix.NFTA_IMMEDIATE_DREG)] = nativeNumber(e.value(unix.NFTA_IMMEDIATE_DATA))
		case "bitwise":
			if to := e.number(unix.NFTA_BITWISE_DREG); holdsMark[e.number(unix.NFTA_BITWISE_SREG)] {
				holdsMark[to], constant[to] = true, nativeNumber(e.value(unix.NFTA_BITWISE_XOR))
			}
		case "cmp":
			if holdsMark[e.number(unix.NFTA_CMP_SREG)] {
				bits |= nativeNumber(e.value(unix.NFTA_CMP_DATA))
			}
		case "match", "target":
			// iptables: struct xt_mark_mtinfo1 and xt_mark_tginfo2 begin with the mark.
			name, info := e.text(unix.NFTA_MATCH_NAME), e.attributes[unix.NFTA_MATCH_INFO]
			if (name == "mark" || name == "MARK") && len(info) >= 4 {
				bits |= nativeNumber(info[:4])
			}
		}
	}
	return bits
}

func nativeNumber(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// Verdicts of netfilter.h.
const (
	nfDrop   = 0
	nfAccept = 1
)

// isAbsent reports whether an error means that the kernel has no nftables.
func isAbsent(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT)
}
