package netfilter

import (
	"encoding/binary"
	"errors"
	"hash/maphash"

	"golang.org/x/sys/unix"
)

// Table is what a table of nftables has, to compare it with what it should have.
type Table struct {
	Dormant bool                   // its chains see no packet
	Drops   []string               // base chains whose policy is drop
	Rules   map[string][]TableRule // by chain, in the order of evaluation
}

// TableRule is a rule of a table.
type TableRule struct {
	Handle uint64 // the kernel's number of it in the table
	Digest uint64 // of the handle and the expressions
}

// Generation is the number of the present state of nftables in the calling thread's network namespace.
// Each change of any table by any program makes another one.
func Generation() (n uint32, err error) {
	err = errNoGeneration
	asked := ask(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0, []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0},
		func(_ uint16, body []byte) error {
			if len(body) < nfgenmsgBytes {
				return errEnough
			}
			if a := parse(body[nfgenmsgBytes:]); a.has(unix.NFTA_GEN_ID) {
				n, err = a.number(unix.NFTA_GEN_ID), nil
			}
			return errEnough
		})
	if asked != nil {
		return 0, asked
	}
	return n, err
}

var errNoGeneration = errors.New("nftables says no generation")

// ReadTable reads a table of the family inet in the calling thread's network namespace.
// It returns nil if there is none.
func ReadTable(name string) (*Table, error) {
	return settled(func() (*Table, error) { return readTable(name) })
}

// ruleDigest tells rules apart within this process. A rule that replaces another may keep its
// handle.
var ruleDigest = maphash.MakeSeed()

func readTable(name string) (*Table, error) {
	var t *Table
	err := dumpNFTables(unix.NFT_MSG_GETTABLE, unix.NFPROTO_INET, nil, func(_ byte, body []byte) error {
		if a := parse(body); a.text(unix.NFTA_TABLE_NAME) == name {
			t = &Table{Dormant: a.number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0, Rules: map[string][]TableRule{}}
		}
		return nil
	})
	if IsAbsent(err) || err == nil && t == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = dumpNFTables(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_INET, nil, func(_ byte, body []byte) error {
		a := parse(body)
		if a.text(unix.NFTA_CHAIN_TABLE) == name && a.has(unix.NFTA_CHAIN_POLICY) && a.number(unix.NFTA_CHAIN_POLICY) == drop {
			t.Drops = append(t.Drops, a.text(unix.NFTA_CHAIN_NAME))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// A chain without a rule is none of a relay's, so the rules name all chains.
	request := nameAttribute(unix.NFTA_RULE_TABLE, name)
	err = dumpNFTables(unix.NFT_MSG_GETRULE, unix.NFPROTO_INET, request, func(_ byte, body []byte) error {
		var table, chain string
		var rule TableRule
		walk(body, func(kind uint16, data []byte) { // without a map: there may be many rules
			switch kind {
			case unix.NFTA_RULE_TABLE:
				table = unix.ByteSliceToString(data)
			case unix.NFTA_RULE_CHAIN:
				chain = unix.ByteSliceToString(data)
			case unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_EXPRESSIONS:
				rule.Digest = rule.Digest*31 + maphash.Bytes(ruleDigest, data)
				if kind == unix.NFTA_RULE_HANDLE && len(data) == 8 {
					rule.Handle = binary.BigEndian.Uint64(data)
				}
			}
		})
		if table == name { // kernels before 4.7 list all
			t.Rules[chain] = append(t.Rules[chain], rule)
		}
		return nil
	})
	return t, err
}
