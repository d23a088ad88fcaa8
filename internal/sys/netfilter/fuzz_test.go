package netfilter

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzMessages: what the kernel sends does not make the readers panic, whatever it is.
func FuzzMessages(f *testing.F) {
	message := func(body []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
		return append(append(b, make([]byte, unix.NLMSG_HDRLEN-4)...), body...)
	}
	name := attribute(unix.NFTA_EXPR_NAME, []byte("cmp\x00"))
	value := attribute(unix.NFTA_CMP_DATA, attribute(unix.NFTA_DATA_VALUE, []byte{1, 2}))
	f.Add(message(attribute(1, append(name, attribute(unix.NFTA_EXPR_DATA, value)...))))
	f.Add(message(append(make([]byte, unix.SizeofRtMsg), attribute(unix.RTA_OIF, native(3))...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = messages(b, func(_ uint16, body []byte) error {
			e := newEvaluation(&Ruleset{sets: map[setKey]*set{{}: {elements: intervals([]rawElement{readElement(body, "s")}, len(body)%2 == 0)}}},
				packet{family: unix.NFPROTO_IPV4, hook: unix.NF_INET_FORWARD, in: &device{}}, wholeRegion(unix.NFPROTO_IPV4))
			c := &Chain{Family: unix.NFPROTO_IPV4, IsBase: true, Hook: unix.NF_INET_FORWARD, Rules: []Rule{{expressions: nftablesExpressions(body)}}}
			e.rules.Chains = append(e.rules.Chains, c)
			e.hook([]box{e.region})
			c.Rules[0].MarkBits()
			c.Rules[0].Accepts()
			nftablesChain(unix.NFPROTO_INET, parse(body))
			for _, af := range []byte{unix.AF_INET, unix.AF_INET6} {
				w, _, _ := readRoute(af, body)
				longestPrefixes([]way{w, w})
			}
			return nil
		})
	})
}

func wholeRegion(family byte) box {
	address := one(number{}, lowBits(8*packet{family: family}.addressBytes()))
	port := one(small(1), small(1<<16-1))
	return box{address, address, port, port}
}

// FuzzLegacy: tables of iptables-legacy that are not as they should be.
func FuzzLegacy(f *testing.F) {
	for _, of := range legacyFamilies {
		info := make([]byte, infoBytes)
		binary.NativeEndian.PutUint32(info[tableNameBytes:], 1<<unix.NF_INET_FORWARD)
		entry := make([]byte, of.entryBytes+extensionBytes+8)
		binary.NativeEndian.PutUint16(entry[of.targetAt:], uint16(of.entryBytes))
		binary.NativeEndian.PutUint16(entry[of.targetAt+2:], uint16(len(entry)))
		f.Add(info, append(entry, entry...), of.number == unix.NFPROTO_IPV6)
	}
	f.Fuzz(func(t *testing.T, info, b []byte, six bool) {
		of := legacyFamilies[0]
		if six {
			of = legacyFamilies[1]
		}
		chains, err := of.parse("filter", info, b)
		if err != nil {
			return
		}
		r := &Ruleset{byName: map[chainKey]*Chain{}, Chains: chains}
		r.index()
		e := newEvaluation(r, packet{family: of.number, hook: unix.NF_INET_FORWARD, in: &device{}, exact: true, state: stateNew}, wholeRegion(of.number))
		e.hook([]box{e.region})
	})
}

// FuzzMatches: matches of iptables with data of any length.
func FuzzMatches(f *testing.F) {
	for _, name := range []string{"tcp", "multiport", "iprange", "state", "conntrack", "mark", "pkttype", "addrtype"} {
		f.Add(name, byte(1), make([]byte, 200), false)
	}
	f.Fuzz(func(t *testing.T, name string, revision byte, info []byte, six bool) {
		family := byte(unix.NFPROTO_IPV4)
		if six {
			family = unix.NFPROTO_IPV6
		}
		e := newEvaluation(&Ruleset{}, packet{family: family, in: &device{}, exact: true, state: stateNew}, wholeRegion(family))
		c := e.xtMatch(expression{name: "match", attributes: attributes{
			unix.NFTA_MATCH_NAME: []byte(name), unix.NFTA_MATCH_REV: {0, 0, 0, revision}, unix.NFTA_MATCH_INFO: info,
		}})
		e.carve(c.terms, e.region)
	})
}
