// Package netfilter reads the packet filter of this host, nftables and iptables-legacy,
// and says what it does with connections: with all those of a prefix, not with a sample.
//
// [Read] takes the rules, [Ruleset.Forward] and [Ruleset.Input] walk the chains of a hook
// as the kernel does. They walk with sets of flows in place of a packet. A match divides a
// set in two: the flows that match, and the others. A match on something that is not known
// beforehand (a mark, a limit) leaves both possible, and the flows carry that doubt along.
// So a verdict is either certain or names the rule that it depends on.
package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/printable"
)

// Ruleset is the packet filter of a network namespace, as it was when it was read. Sets
// are read when a rule needs them, by the thread that asks.
type Ruleset struct {
	Chains []*Chain

	byName map[chainKey]*Chain
	sets   map[setKey]*set
	// devices and ways are read when they are asked for.
	devices map[uint32]*device
	ways    map[byte]routing
	// untracks is set if a rule keeps connection tracking off some packets.
	untracks bool
	// unseen is what may have rules and cannot be read; empty: nothing.
	unseen string
}

type chainKey struct {
	program     Program
	family      byte
	table, name string
}

// Program is what has a chain.
type Program string

// Programs that have chains. iptables-nft has its chains in nftables.
const (
	NFTables Program = "nftables"
	Legacy   Program = "iptables-legacy"
)

// ChainName names a chain.
type ChainName struct {
	Program Program `json:"program"`
	Family  string  `json:"family"` // "inet", "ip", "ip6"
	Table   string  `json:"table"`
	Name    string  `json:"name"`
}

// String is "the nftables chain inet filter forward", or "FORWARD of iptables-legacy's
// table filter".
func (c ChainName) String() string {
	if c.Program == Legacy {
		return printable.String(fmt.Sprintf("%s of %s's table %s", c.Name, c.legacyCommand(), c.Table))
	}
	return fmt.Sprintf("the nftables chain %s", c.Path())
}

// Path is the chain as nft takes it.
func (c ChainName) Path() string {
	return printable.String(fmt.Sprintf("%s %s %s", c.Family, c.Table, c.Name))
}

func (c ChainName) legacyCommand() string {
	if c.Family == "ip6" {
		return "ip6tables-legacy"
	}
	return "iptables-legacy"
}

// Show is the command that lists the chain's rules with what [Verdict] numbers them by.
func (c ChainName) Show() string {
	if c.Program == Legacy {
		table := ""
		if c.Table != "filter" {
			table = "-t " + c.Table + " "
		}
		return fmt.Sprintf("%s %s-L %s -n -v --line-numbers", c.legacyCommand(), table, c.Name)
	}
	return "nft -a list chain " + c.Path()
}

// Chain is a chain of any program.
type Chain struct {
	ChainName
	Family   byte // NFPROTO_INET
	IsBase   bool
	Hook     uint32 // NF_INET_FORWARD
	Priority int32
	Rules    []Rule

	drops bool // the policy
	isNAT bool
}

func (c *Chain) key() chainKey {
	return chainKey{c.Program, c.Family, c.Table, c.Name}
}

func (c *Chain) seesFamily(family byte) bool {
	return c.Family == unix.NFPROTO_INET || c.Family == family
}

// Rule is a rule with its expressions, in the order of their evaluation.
type Rule struct {
	number      int // from 1; its place in the chain
	handle      uint64
	expressions []expression
}

// expression is a match or a statement. iptables-legacy's become such expressions.
type expression struct {
	name string
	attributes
	entry   []byte   // "entry": struct ipt_ip or ip6t_ip6, see xtables.go
	verdict *verdict // "verdict": of iptables-legacy
}

// verdict is the end of a rule that matches.
type verdict struct {
	code    int32
	chain   string
	unknown string // what it depends on
}

// Verdicts of netfilter.h.
const (
	drop   = 0
	accept = 1
)

func verdictOf(data []byte) *verdict {
	a := parse(parse(data)[unix.NFTA_DATA_VERDICT])
	v := &verdict{code: int32(a.number(unix.NFTA_VERDICT_CODE)), chain: a.text(unix.NFTA_VERDICT_CHAIN)}
	if v.code >= 0 {
		v.code &= 0xff // a queue's number, or an error, is above
	}
	switch v.code {
	case drop, accept, unix.NFT_CONTINUE, unix.NFT_BREAK, unix.NFT_JUMP, unix.NFT_GOTO, unix.NFT_RETURN:
	default:
		v.unknown = "what another program decides"
	}
	return v
}

// maxReads bounds how often something is read that changes meanwhile.
const maxReads = 5

// settled reads a list until nothing changes meanwhile.
func settled[T any](read func() (T, error)) (all T, err error) {
	for range maxReads {
		if all, err = read(); !errors.Is(err, errInterrupted) {
			break
		}
	}
	return all, err
}

// Read reads the rules of the calling thread's network namespace, without the tables of nftables
// that leave chooses. Nil: it reads all.
func Read(leave func(family, table string) bool) (*Ruleset, error) {
	r, err := settled(func() (*Ruleset, error) { return readOnce(leave) })
	if errors.Is(err, errInterrupted) {
		return nil, fmt.Errorf("read the packet filter: %w, %d times", errInterrupted, maxReads)
	}
	return r, err
}

func readOnce(leave func(family, table string) bool) (*Ruleset, error) {
	r := &Ruleset{byName: map[chainKey]*Chain{}, sets: map[setKey]*set{}, ways: map[byte]routing{}}
	if err := r.readNFTables(leave); err != nil {
		return nil, fmt.Errorf("read nftables: %w", err)
	}
	if err := r.readLegacy(); err != nil {
		return nil, fmt.Errorf("read iptables-legacy: %w", err)
	}
	r.index()
	return r, nil
}

func (r *Ruleset) add(c *Chain) {
	r.Chains = append(r.Chains, c)
	r.byName[c.key()] = c
}

func (r *Ruleset) index() {
	clear(r.byName)
	type tableKey struct {
		program Program
		family  byte
		table   string
	}
	early := map[tableKey]bool{} // tables with a chain before connection tracking
	for _, c := range r.Chains {
		r.byName[c.key()] = c
		if c.IsBase && c.Hook == unix.NF_INET_PRE_ROUTING && c.Priority < conntrackPriority {
			early[tableKey{c.Program, c.Family, c.Table}] = true
		}
	}
	r.untracks = slices.ContainsFunc(r.Chains, func(c *Chain) bool {
		isEarly := c.Hook == unix.NF_INET_PRE_ROUTING && c.Priority < conntrackPriority || !c.IsBase
		return isEarly && early[tableKey{c.Program, c.Family, c.Table}] &&
			slices.ContainsFunc(c.Rules, func(rule Rule) bool { return slices.ContainsFunc(rule.expressions, expression.untracks) })
	})
}

// conntrackPriority is that of connection tracking: what comes before may keep it off.
const conntrackPriority = -200

// Accepts reports whether the rule ends with accept.
func (r Rule) Accepts() bool {
	if len(r.expressions) == 0 {
		return false
	}
	switch x := r.expressions[len(r.expressions)-1]; x.name {
	case "immediate":
		return verdictOf(x.attributes[unix.NFTA_IMMEDIATE_DATA]).code == accept
	case "verdict":
		return x.verdict.code == accept
	}
	return false
}

// MarkBits returns the bits of a packet's mark that the rule tests for or sets.
func (r Rule) MarkBits() (bits uint32) {
	holdsMark := map[uint32]bool{} // registers with a mark
	constant := map[uint32]uint32{}
	for _, e := range r.expressions {
		switch e.name {
		case "meta":
			if e.number(unix.NFTA_META_KEY) != unix.NFT_META_MARK {
				continue
			}
			if e.has(unix.NFTA_META_SREG) {
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

// untracks reports whether an expression may keep connection tracking off a packet.
func (x expression) untracks() bool {
	if x.name == "target" {
		name, info := x.text(unix.NFTA_TARGET_NAME), x.attributes[unix.NFTA_TARGET_INFO]
		const noTrack = 1 // XT_CT_NOTRACK
		return name == "NOTRACK" || name == "CT" && len(info) >= 2 && binary.NativeEndian.Uint16(info)&noTrack != 0
	}
	return x.name == "notrack"
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

func isRouted(family byte) bool { return !strings.HasPrefix(familyWord(family), "family") }
