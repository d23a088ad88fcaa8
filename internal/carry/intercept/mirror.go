package intercept

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"longhaul/internal/carry/intercept/hold"
)

// A mirrored SYN passes the rules twice. As it comes from the client it goes to the hold's
// listener, which drops it. Then the hold puts it back with its answer in the source
// address of Ethernet.

// divert says what becomes of a tunnel's first SYNs.
func (f family) divert(t Tunnel) (rules []rule) {
	for _, option := range signatures {
		rules = append(rules, rule{option, countIn(signedCounter(t.Name)), accept})
	}
	bypassed := rule{notToThisHost, countIn(bypassCounter(t.Name))}
	toRelay := rule{isTCP, f.tproxy(f.port(t), "PORT"), countIn(counterName(t.Name)), goTo(f.take().name)}
	if !t.Mirror {
		if t.Paused {
			return append(rules, bypassed)
		}
		return append(rules, join(rule{notToThisHost}, toRelay))
	}
	// What was put back has its answer even while the tunnel is paused. Without the
	// relay's listener it must not be held again.
	rules = append(rules,
		join(rule{notToThisHost, putBackWith(hold.Connect)}, toRelay),
		rule{notToThisHost, putBack, goTo(f.refusals().name)})
	if t.Paused {
		return append(rules, bypassed)
	}
	return append(rules, rule{notToThisHost, isTCP, f.tproxy(f.holdPort(t), "HOLD"), notrack, accept})
}

// refusals is the chain that refuses what was put back.
func (f family) refusals() chain {
	answered := func(as hold.Answer, with ...statement) rule {
		at := plain(fmt.Sprintf("@ll,88,8 %d", as),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 11, Len: 1}, equal(byte(as)))
		return join(with[:1], rule{at}, with[1:])
	}
	nfproto := plain("meta nfproto "+f.name, f.expressions()...)
	unreachable := func(as hold.Answer, v4, v6 icmpCode) rule {
		word, code := "icmp", v4
		if f.bits == 128 {
			word, code = "icmpv6", v6
		}
		return answered(as, nfproto, plain(fmt.Sprintf("reject with %s type %s", word, code.word),
			&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code.number}))
	}
	return chain{name: "refuse-" + f.name, rules: []rule{
		answered(hold.Reset, isTCP, plain("reject with tcp reset", &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})),
		unreachable(hold.NetUnreachable, icmpCode{"net-unreachable", 0}, icmpCode{"no-route", 0}),
		unreachable(hold.HostUnreachable, icmpCode{"host-unreachable", 1}, icmpCode{"addr-unreachable", 3}),
		unreachable(hold.AdminProhibited, icmpCode{"admin-prohibited", 13}, icmpCode{"admin-prohibited", 1}),
	}}
}

// icmpCode is a code of the type "destination unreachable".
type icmpCode struct {
	word   string
	number uint8
}

var putBack = plain(fmt.Sprintf("@ll,48,40 %#x", hold.SourcePrefix[:]),
	&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 5}, equal(hold.SourcePrefix[:]...))

func putBackWith(a hold.Answer) statement {
	source := hold.SourceOf(a)
	return plain(fmt.Sprintf("@ll,48,48 %#x", source[:]),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6}, equal(source[:]...))
}

func goTo(chain string) statement {
	return plain("goto "+chain, &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}
