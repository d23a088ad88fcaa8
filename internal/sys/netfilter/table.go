package netfilter

import (
	"hash/maphash"

	"golang.org/x/sys/unix"
)

// Table is what a table of nftables has, to compare it with what it should have.
type Table struct {
	Dormant bool                // its chains see no packet
	Drops   []string            // base chains whose policy is drop
	Rules   map[string][]uint64 // by chain: a digest of each rule, in the order of evaluation
}

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
			t = &Table{Dormant: a.number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0, Rules: map[string][]uint64{}}
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
		var digest uint64
		walk(body, func(kind uint16, data []byte) { // without a map: there may be many rules
			switch kind {
			case unix.NFTA_RULE_TABLE:
				table = unix.ByteSliceToString(data)
			case unix.NFTA_RULE_CHAIN:
				chain = unix.ByteSliceToString(data)
			case unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_EXPRESSIONS:
				digest = digest*31 + maphash.Bytes(ruleDigest, data)
			}
		})
		if table == name { // kernels before 4.7 list all
			t.Rules[chain] = append(t.Rules[chain], digest)
		}
		return nil
	})
	return t, err
}
