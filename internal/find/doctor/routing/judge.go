package routing

import (
	"fmt"
	"strings"

	"longhaul/internal/words/display"
)

// Cause is why intercepted connections fail, or are not intercepted.
type Cause string

// The causes. Healthy and Standby need no remedy.
const (
	Healthy           Cause = "healthy"
	Standby           Cause = "standby"
	RulesMissing      Cause = "rules-missing"
	ClientRoute       Cause = "client-route"
	ClientInterface   Cause = "client-interface"
	ClientsElsewhere  Cause = "clients-elsewhere"
	HandshakesHang    Cause = "handshakes-hang"
	NoRoute           Cause = "no-route"
	TargetSilent      Cause = "target-silent"
	ReversePathFilter Cause = "reverse-path-filter"
	Firewall          Cause = "firewall"
	AsymmetricReturn  Cause = "asymmetric-return"
	AnswersLost       Cause = "answers-lost"
	VRRPSplit         Cause = "vrrp-split"
	RouteChanged      Cause = "route-changed"
)

// Remedy is a way to remove the cause.
type Remedy struct {
	Action  string `json:"action"`          // a clause
	Place   Place  `json:"place,omitempty"` // where Command is to be run
	Command string `json:"command,omitempty"`
}

// Place is where a command is to be run.
type Place string

// The places.
const (
	Here      Place = "this host"
	AtTargets Place = "the router of the targets"
	AtClients Place = "the router of the clients"
	Between   Place = "each router on the way"
)

// Verdict is the judgement of one observation.
type Verdict struct {
	Observation Observation `json:"observation"`
	Cause       Cause       `json:"cause"`
	// Certain is false if something else would show the same. Doubt then says how to
	// distinguish them.
	Certain  bool     `json:"certain"`
	Sentence string   `json:"sentence"`
	Evidence []string `json:"evidence"` // a clause each
	Remedies []Remedy `json:"remedies,omitempty"`
	Doubt    string   `json:"doubt,omitempty"`
}

// Judge names the cause that an observation shows.
func Judge(o Observation) Verdict {
	for _, rule := range []func(*Observation) *Verdict{
		rulesMissing, clientRoute, failedConnect, returnByClients, clientSide, handshakes, routeChanged,
	} {
		if v := rule(&o); v != nil {
			v.Observation = o
			return *v
		}
	}
	v := Verdict{Observation: o, Cause: Healthy, Certain: true,
		Sentence: "Nothing to fix: the packets of both directions pass this host.", Evidence: []string{answered(&o)}}
	switch {
	case o.Back != nil && len(o.Back.RepliedAt) > 0:
		v.Evidence = append(v.Evidence, fmt.Sprintf("an echo reply of %s to %s passed here, at %s", o.Client, o.Target.Addr(), o.Interface))
	case o.Connections > 0:
		v.Evidence = append(v.Evidence, fmt.Sprintf("the tunnel took %s", display.Plural(int(o.Connections), "connection")))
	default:
		v.Sentence = "Nothing to fix on the way to the target: its answers pass this host."
		v.Evidence = append(v.Evidence, "nothing shows how packets of clients come here: no client answered, and the tunnel took no connection yet")
	}
	return v
}

func answered(o *Observation) string {
	what := "accepts"
	if o.Toward.Result == Refused {
		what = "refuses"
	}
	return fmt.Sprintf("%s %s a connection from %s, and the answer comes by %s", o.Target, what, o.source(), last(o.Toward.AnsweredAt))
}

// source is where the first connect came from, in words.
func (o *Observation) source() string {
	switch {
	case o.SourceRelay:
		return "this host"
	case o.Proxy:
		return fmt.Sprintf("%s (this host's address at %s)", o.Client, o.Interface)
	}
	return o.Client.String()
}

func rulesMissing(o *Observation) *Verdict {
	if o.Problem == "" {
		return nil
	}
	v := &Verdict{Cause: RulesMissing, Certain: true,
		Sentence: "The relay's rules are not as it set them.",
		Evidence: []string{o.Problem},
		Remedies: []Remedy{{"restart the relay", Here, "systemctl restart longhaul"}}}
	if o.Removed {
		v.Remedies = []Remedy{
			{"have the relay set them again", Here, "longhaul reload"},
			{"the relay sets them again by itself unless a program keeps removing them: its log and its status name that program", Here, "longhaul status"}}
		v.Sentence = "Another program has removed rules of the relay: new connections pass it, and its flows break."
		if o.Swallowed {
			v.Sentence = "Another program has removed rules of the relay: new connections get no answer, and its flows stand still."
		}
	}
	return v
}

func clientRoute(o *Observation) *Verdict {
	if o.Proxy || o.ClientDevice == "" || o.ClientDevice == o.Interface {
		return nil
	}
	return &Verdict{Cause: ClientRoute, Certain: true,
		Sentence: fmt.Sprintf("The route to the client leads by %s, and the tunnel intercepts at %s: the relay's answers leave by the wrong side.", o.ClientDevice, o.Interface),
		Evidence: []string{fmt.Sprintf("the route to %s leads by %s", o.Client, o.ClientDevice)},
		Remedies: []Remedy{
			{fmt.Sprintf("have the route to %s lead by %s; this shows the present one", o.Clients, o.Interface), Here, "ip route get " + o.Client.String()},
			{fmt.Sprintf("or intercept at %s, if the clients' packets arrive there", o.ClientDevice), "", ""},
		}}
}

// failedConnect judges a target that did not answer the client's address.
func failedConnect(o *Observation) *Verdict {
	c := o.Toward
	if c == nil || c.ok() {
		return nil
	}
	at, by := last(c.AnsweredAt), first(c.SentBy)
	switch {
	case o.Proxy && has(c.AnsweredAt, o.Interface) && by != o.Interface:
		return nil // returnByClients
	case by == "" && c.Result == Rejected:
		return &Verdict{Cause: NoRoute, Certain: true,
			Sentence: fmt.Sprintf("This host sends nothing to %s: it has no route there, or its firewall forbids it.", o.Target.Addr()),
			Evidence: []string{"the connect failed before a packet left: " + c.Error},
			Remedies: []Remedy{{"add the route, or allow it", Here, "ip route get " + o.Target.Addr().String()}}}
	case by == "":
		return &Verdict{Cause: Firewall, Certain: true,
			Sentence: fmt.Sprintf("This host's firewall drops what the relay sends to %s.", o.Target),
			Evidence: []string{"no packet of the connect left this host"},
			Remedies: []Remedy{{fmt.Sprintf("accept TCP to port %d in the output chain", o.Target.Port()), Here, "nft list ruleset"}}}
	case at != "" && c.FilterDrops > 0:
		return &Verdict{Cause: ReversePathFilter, Certain: true,
			Sentence: fmt.Sprintf("This host drops the target's answers by its reverse-path filter: they come by %s, and the route to the target leads by %s.", at, by),
			Evidence: []string{
				fmt.Sprintf("the SYN to %s left by %s, and the answer arrived at %s", o.Target, by, at),
				fmt.Sprintf("the kernel's counter IPReversePathFilter went up by %d", c.FilterDrops)},
			Remedies: []Remedy{{fmt.Sprintf("accept answers at %s to which another route leads", at), Here, fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", at)}}}
	case len(c.ForwardedBy) > 0:
		return &Verdict{Cause: RulesMissing, Certain: true,
			Sentence: "This host passes the target's answers on to the client, past the relay: a rule of the relay is without effect.",
			Evidence: []string{fmt.Sprintf("the answer of %s arrived at %s, and left by %s", o.Target, at, first(c.ForwardedBy))},
			Remedies: []Remedy{{"look for routing rules before 1812 that take marked packets, then restart the relay", Here, "ip rule"}}}
	case at != "":
		return firewall(o, at)
	case !o.Control.ok():
		return &Verdict{Cause: TargetSilent, Certain: true,
			Sentence: fmt.Sprintf("%s does not answer this host at all: the way there is down, or the target is.", o.Target),
			Evidence: []string{
				fmt.Sprintf("the SYN from %s left by %s, without an answer", o.source(), by),
				"a connect from this host's own address got none either"},
			Remedies: []Remedy{{"look at the target and the way there: interception is not the cause", Here, "traceroute -T -p " + fmt.Sprint(o.Target.Port()) + " " + o.Target.Addr().String()}}}
	}
	return unanswered(o, by)
}

func firewall(o *Observation, at string) *Verdict {
	v := &Verdict{Cause: Firewall, Certain: true,
		Sentence: fmt.Sprintf("This host's firewall drops the target's answers, which arrive at %s.", at),
		Evidence: []string{fmt.Sprintf("the answer of %s arrived at %s, and the connect failed", o.Target, at)},
		Remedies: []Remedy{{fmt.Sprintf("accept the relay's answers before the rule that drops them: iifname %q tcp sport %d", at, o.Target.Port()), Here, "nft list ruleset"}}}
	if n := o.Toward.ConntrackInvalid; n > 0 {
		v.Sentence = fmt.Sprintf("This host's firewall drops the target's answers: connection tracking calls them invalid at %s.", at)
		v.Evidence = append(v.Evidence, fmt.Sprintf("the kernel's count of packets that conntrack calls invalid went up by %d", n))
		v.Remedies[0].Action = fmt.Sprintf("accept the relay's answers before the rule with ct state invalid: iifname %q tcp sport %d", at, o.Target.Port())
	}
	return v
}

// unanswered judges a target that answers this host's own address, and not the client's.
func unanswered(o *Observation, by string) *Verdict {
	evidence := []string{
		fmt.Sprintf("the SYN from %s left by %s, and no answer arrived at any device", o.source(), by),
		fmt.Sprintf("from this host's own address %s, %s answers", o.Own, o.Target)}
	back := Remedy{fmt.Sprintf("route the clients' network %s by this host there", o.Clients), AtTargets, fmt.Sprintf("ip route replace %s via %s", o.Clients, o.Own)}
	own := Remedy{fmt.Sprintf("or have the relay dial from its own address: source: relay of tunnel %s; the targets then do not see the clients", o.Tunnel), "", ""}
	reset := last(o.Toward.ResetAt)
	if reset != "" {
		evidence = append(evidence, fmt.Sprintf("%s answered with a reset, which arrived at %s: it got an answer that did not pass this host", o.Client, reset))
	}
	mine, here := o.masters(o.Interface)
	_, others := o.masters(by)
	switch {
	case others != nil && mine != nil && here == nil:
		return &Verdict{Cause: VRRPSplit, Certain: reset != "",
			Sentence: fmt.Sprintf("Two VRRP routers share the way: this host is the master at %s, and %s is at %s, where the answers go.", o.Interface, others.Address, by),
			Evidence: append(evidence,
				fmt.Sprintf("this host sends adverts of virtual router %d at %s", mine.ID, o.Interface),
				fmt.Sprintf("%s sends adverts of virtual router %d at %s", others.Address, others.ID, by)),
			Remedies: []Remedy{
				{"put the VRRP instances of the two sides into one group, on both hosts, so that they move together: vrrp_sync_group in keepalived.conf", "", ""}, own},
			Doubt: doubtUnless(reset != "", "a filter on the way would show the same; see who gets the answers: tcpdump tcp port "+fmt.Sprint(o.Target.Port())+" on "+others.Address.String())}
	case others != nil && here != nil:
		return standby(o, here, evidence...)
	case reset != "":
		return &Verdict{Cause: AsymmetricReturn, Certain: true,
			Sentence: "The target's answers reach the client by another way, past this host: the relay never gets them.",
			Evidence: evidence, Remedies: []Remedy{back, own}}
	}
	return &Verdict{Cause: AnswersLost,
		Sentence: "The target answers this host, but its answers for the client's address never come: they take another way, or a router drops one of the two packets.",
		Evidence: evidence,
		Remedies: []Remedy{back,
			{"a router whose way to the clients is another drops the SYN if its reverse-path filter is strict; its counter shows that", Between, "nstat -as TcpExtIPReversePathFilter; sysctl -a -r '\\.rp_filter'"},
			{"a router that sees the answer alone drops it if its firewall drops what conntrack calls invalid", Between, "conntrack -S; nft list ruleset"},
			own},
		Doubt: fmt.Sprintf("one probe each way cannot tell these from each other: nothing after the SYN passed this host. Look on each router which packets pass it: tcpdump -ni any host %s and port %d", o.Client, o.Target.Port())}
}

func doubtUnless(certain bool, doubt string) string {
	if certain {
		return ""
	}
	return doubt
}

func standby(o *Observation, master *Master, evidence ...string) *Verdict {
	return &Verdict{Cause: Standby, Certain: true,
		Sentence: fmt.Sprintf("This host is the backup of %s: clients' connections do not come here now. Run it there.", master.Address),
		Evidence: append(evidence, fmt.Sprintf("%s sends adverts of virtual router %d at %s", master.Address, master.ID, o.Interface))}
}

// returnByClients judges a connect from this host's address at the clients' side: an answer
// by that side came by another router.
func returnByClients(o *Observation) *Verdict {
	c := o.Toward
	if !o.Proxy || c == nil || !has(c.AnsweredAt, o.Interface) || has(c.SentBy, o.Interface) {
		return nil
	}
	return &Verdict{Cause: AsymmetricReturn, Certain: true,
		Sentence: "The target's answers come to the clients' network by another way: the relay never gets those for clients.",
		Evidence: []string{fmt.Sprintf("the SYN from %s left by %s, and the answer of %s arrived at %s", o.source(), first(c.SentBy), o.Target, o.Interface)},
		Remedies: []Remedy{
			{fmt.Sprintf("route the clients' network %s by this host there", o.Clients), AtTargets, fmt.Sprintf("ip route replace %s via %s", o.Clients, o.Own)},
			{fmt.Sprintf("or have the relay dial from its own address: source: relay of tunnel %s; the targets then do not see the clients", o.Tunnel), "", ""}}}
}

// clientSide judges what comes from clients.
func clientSide(o *Observation) *Verdict {
	mine, other := o.masters(o.Interface)
	gateway := Remedy{fmt.Sprintf("route the targets' network %s by this host there", o.Targets), AtClients, fmt.Sprintf("ip route replace %s via %s", o.Targets, o.InterfaceAddress)}
	if o.Strays > 1 {
		return &Verdict{Cause: ClientsElsewhere, Certain: true,
			Sentence: "Clients' packets take another way: only the targets' answers pass this host, so it intercepts nothing.",
			Evidence: []string{fmt.Sprintf("%d answers of targets to clients passed whose connects did not", o.Strays)},
			Remedies: []Remedy{gateway}}
	}
	if o.Back == nil {
		return nil
	}
	if at := last(o.Back.RepliedAt); at != "" {
		if has(o.Back.RepliedAt, o.Interface) {
			return nil
		}
		return &Verdict{Cause: ClientInterface, Certain: true,
			Sentence: fmt.Sprintf("The clients' packets arrive at %s, and the tunnel intercepts at %s: it takes none of them.", at, o.Interface),
			Evidence: []string{fmt.Sprintf("an echo reply of %s to %s arrived at %s", o.Client, o.Target.Addr(), at)},
			Remedies: []Remedy{{fmt.Sprintf("intercept at %s: a tunnel with interface: %s", at, at), Here, "longhaul reload"}}}
	}
	if o.BackControl == nil || len(o.BackControl.RepliedAt) == 0 || o.Connections > 0 {
		return nil // clients that answer no echo request show nothing
	}
	evidence := []string{
		fmt.Sprintf("%s answers an echo request of this host, and its reply to %s does not pass here", o.Client, o.Target.Addr()),
		"the tunnel took no connection yet"}
	if other != nil && mine == nil {
		return standby(o, other, evidence...)
	}
	return &Verdict{Cause: ClientsElsewhere,
		Sentence: fmt.Sprintf("The packets of %s to the target do not pass this host: the relay intercepts nothing of it.", o.Client),
		Evidence: evidence, Remedies: []Remedy{gateway},
		Doubt: fmt.Sprintf("a client that answers echo requests of its own network alone shows the same; see the route there: ip route get %s", o.Target.Addr())}
}

// handshakes judges clients that the relay answers, and whose handshakes never end.
func handshakes(o *Observation) *Verdict {
	if len(o.Handshakes) == 0 {
		return nil
	}
	h := o.Handshakes[0]
	v := &Verdict{Cause: HandshakesHang,
		Evidence: []string{fmt.Sprintf("%s, such as from %s to %s: %s came, %s left by %s, and nothing after that came",
			display.Plural(len(o.Handshakes), "handshake"), h.Client, h.Target,
			display.Plural(h.SYNs, "SYN"), display.Plural(h.Answers, "answer"), o.Interface)}}
	if h.Repeats > 0 {
		v.Sentence = fmt.Sprintf("The relay's answers, which leave by %s, do not reach the clients: something on the way drops them.", o.Interface)
		v.Remedies = []Remedy{{"a router that sees the answers alone drops them if its firewall drops what conntrack calls invalid: route both directions by it", Between, "conntrack -S; nft list ruleset"}}
		v.Doubt = fmt.Sprintf("the client repeats its SYN, so it got no answer; see where it ends: tcpdump -ni any host %s and port %d", h.Client.Addr(), h.Client.Port())
	} else {
		v.Sentence = "The clients get the relay's answers, and what they send next takes another way."
		v.Remedies = []Remedy{{fmt.Sprintf("route all packets of the clients to %s by this host", o.Targets), AtClients, "ip route get " + h.Target.Addr().String()}}
		v.Doubt = "a scanner of ports shows the same"
	}
	return v
}

// routeChanged judges flows that stand while new connections work.
func routeChanged(o *Observation) *Verdict {
	if len(o.Stalled) == 0 || !o.Toward.ok() {
		return nil
	}
	s := o.Stalled[0]
	by := first(s.SentBy)
	if by == "" {
		by = first(o.Toward.SentBy)
	}
	v := &Verdict{Cause: RouteChanged,
		Sentence: fmt.Sprintf("%s to the target get no answer, while new connections do: their route changed, and a router on the new one does not know them.", display.Plural(len(o.Stalled), "flow")),
		Evidence: []string{
			fmt.Sprintf("%s: the target has acknowledged nothing for %s, though the relay sent again", s.Source, display.Span(s.Silence)),
			answered(o), fmt.Sprintf("the route to the target leads by %s now", by)},
		Remedies: []Remedy{{"end these flows, so that their programs connect again", Here, fmt.Sprintf("ss -K dst %s dport = %d src %s sport = %d", o.Target.Addr(), o.Target.Port(), s.Source.Addr(), s.Source.Port())}},
		Doubt:    "a NAT or a firewall that has restarted shows the same"}
	if len(o.Stalled) == 1 {
		v.Sentence = strings.NewReplacer("1 flow to the target get", "1 flow to the target gets", "their route", "its route", "know them", "know it").Replace(v.Sentence)
	}
	if at := last(s.ArrivedAt); at != "" && at != by && o.FilterDrops > 0 {
		v.Certain, v.Doubt = true, ""
		v.Sentence = fmt.Sprintf("The route to the target changed under a flow: its packets still come by %s, and this host's reverse-path filter drops them.", at)
		v.Evidence = append(v.Evidence, fmt.Sprintf("packets of the flow arrive at %s, and leave by %s", at, by),
			fmt.Sprintf("the kernel's counter IPReversePathFilter went up by %d", o.FilterDrops))
		v.Remedies = append([]Remedy{{fmt.Sprintf("accept packets at %s to which another route leads", at), Here, fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2", at)}}, v.Remedies...)
	}
	return v
}
