package routing

import (
	"bytes"
	"encoding/binary"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the verdicts to testdata")

// base is a healthy way, but for its probes.
func base() Observation {
	return Observation{
		Relay: "site-a", Tunnel: "to-b", Interface: "lan0", InterfaceAddress: netip.MustParseAddr("10.10.10.1"),
		Clients: netip.MustParsePrefix("10.10.10.0/24"), Targets: netip.MustParsePrefix("10.20.20.0/24"),
		Client: netip.MustParseAddr("10.10.10.7"), Target: netip.MustParseAddrPort("10.20.20.5:22"), ClientDevice: "lan0",
		Own: netip.MustParseAddr("192.0.2.1"), Toward: &Connect{Result: Connected, SentBy: []string{"wan0"}, AnsweredAt: []string{"wan0"}},
		Back: &Echo{Sent: true, RepliedAt: []string{"lan0"}},
	}
}

func silent(c Connect) func(o *Observation) {
	return func(o *Observation) {
		c.Result, c.SentBy = Silent, []string{"wan0"}
		o.Toward, o.Control = &c, &Connect{Result: Connected}
	}
}

func masters(left, right bool) []Master {
	return []Master{
		{"lan0", 61, netip.MustParseAddr(map[bool]string{true: "10.10.10.1", false: "10.10.10.2"}[left]), left},
		{"wan0", 62, netip.MustParseAddr(map[bool]string{true: "192.0.2.1", false: "192.0.2.2"}[right]), right},
	}
}

var lan0 = []string{"lan0"}

// Each change of a healthy way has its cause.
var judgements = []struct {
	name    string
	cause   Cause
	certain bool
	change  func(o *Observation)
}{
	{"healthy", Healthy, true, func(*Observation) {}},
	{"healthy@refused", Healthy, true, func(o *Observation) { o.Toward.Result = Refused }},
	{"healthy@quiet-client", Healthy, true, func(o *Observation) { o.Back, o.BackControl = &Echo{Sent: true}, &Echo{Sent: true} }},
	{"healthy@quiet-client-that-connects", Healthy, true, func(o *Observation) {
		o.Back, o.BackControl, o.Connections = &Echo{Sent: true}, &Echo{Sent: true, RepliedAt: lan0}, 4
	}},
	{"healthy@bridge", Healthy, true, func(o *Observation) { o.Back.RepliedAt = []string{"eth0", "lan0"} }},
	{"healthy@other-way-back", Healthy, true, func(o *Observation) { o.Toward.AnsweredAt = []string{"wan1"} }},
	{"healthy@vrrp-master", Healthy, true, func(o *Observation) { o.Masters = masters(true, true) }},
	{"healthy@vrrp-load-shared", Healthy, true, func(o *Observation) { o.Masters = append(masters(true, true), masters(false, false)...) }},
	{"healthy@one-stray", Healthy, true, func(o *Observation) { o.Strays = 1 }},
	{"target-silent@stalled", TargetSilent, true, func(o *Observation) {
		silent(Connect{})(o)
		o.Control.Result = Silent
		o.Stalled = []Stalled{{Silence: time.Minute}}
	}},
	{"standby", Standby, true, func(o *Observation) { silent(Connect{})(o); o.Masters = masters(false, false) }},
	{"standby@answers", Standby, true, func(o *Observation) {
		o.Masters, o.Back, o.BackControl = masters(false, false), &Echo{Sent: true}, &Echo{Sent: true, RepliedAt: lan0}
	}},
	{"rules-missing", RulesMissing, true, func(o *Observation) {
		o.Problem, o.Removed, o.Toward, o.Back = "another program has removed the nftables table longhaul-site-a: new connections go directly", true, nil, nil
	}},
	{"rules-missing@swallowed", RulesMissing, true, func(o *Observation) {
		o.Problem, o.Toward, o.Back = "another program has removed the IPv4 routing rule for mark 0x1000: new connections get no answer", nil, nil
		o.Removed, o.Swallowed = true, true
	}},
	{"rules-missing@interrupted", RulesMissing, true, func(o *Observation) {
		o.Problem, o.Toward, o.Back = "interrupted: the next start of the relay completes it", nil, nil
	}},
	{"rules-missing@forwarded", RulesMissing, true, silent(Connect{AnsweredAt: []string{"wan0"}, ForwardedBy: lan0})},
	{"client-route", ClientRoute, true, func(o *Observation) { o.ClientDevice = "wan0" }},
	{"client-interface", ClientInterface, true, func(o *Observation) { o.Back.RepliedAt = []string{"lan1"} }},
	{"clients-elsewhere", ClientsElsewhere, false, func(o *Observation) {
		o.Back, o.BackControl = &Echo{Sent: true}, &Echo{Sent: true, RepliedAt: lan0}
	}},
	{"clients-elsewhere@strays", ClientsElsewhere, true, func(o *Observation) { o.Strays = 3 }},
	{"handshakes-hang@no-ack", HandshakesHang, false, func(o *Observation) {
		o.Handshakes = []Handshake{{netip.MustParseAddrPort("10.10.10.8:40000"), o.Target, 1, 0, 3}}
	}},
	{"handshakes-hang@no-answer", HandshakesHang, false, func(o *Observation) {
		o.Handshakes = []Handshake{{netip.MustParseAddrPort("10.10.10.8:40000"), o.Target, 3, 2, 4}, {netip.MustParseAddrPort("10.10.10.9:40000"), o.Target, 3, 2, 4}}
	}},
	{"no-route", NoRoute, true, func(o *Observation) {
		o.Toward = &Connect{Result: Rejected, Error: "connect: network is unreachable"}
	}},
	{"target-silent", TargetSilent, true, func(o *Observation) { silent(Connect{})(o); o.Control.Result = Silent }},
	{"reverse-path-filter", ReversePathFilter, true, silent(Connect{AnsweredAt: []string{"wan1"}, FilterDrops: 2})},
	{"firewall", Firewall, true, silent(Connect{AnsweredAt: []string{"wan0"}})},
	{"firewall@conntrack", Firewall, true, silent(Connect{AnsweredAt: []string{"wan0"}, ConntrackInvalid: 2})},
	{"firewall@output", Firewall, true, func(o *Observation) { o.Toward = &Connect{Result: Silent} }},
	{"asymmetric-return", AsymmetricReturn, true, silent(Connect{ResetAt: lan0})},
	{"asymmetric-return@proxy", AsymmetricReturn, true, func(o *Observation) {
		o.Proxy, o.Client, o.ClientDevice, o.Back, o.Toward.AnsweredAt = true, o.InterfaceAddress, "lo", nil, lan0
	}},
	{"answers-lost", AnswersLost, false, silent(Connect{})},
	{"vrrp-split", VRRPSplit, true, func(o *Observation) { silent(Connect{ResetAt: lan0})(o); o.Masters = masters(true, false) }},
	{"vrrp-split@no-reset", VRRPSplit, false, func(o *Observation) { silent(Connect{})(o); o.Masters = masters(true, false) }},
	{"route-changed", RouteChanged, false, func(o *Observation) {
		o.Stalled = []Stalled{{Source: netip.MustParseAddrPort("10.10.10.8:40000"), Silence: 12 * time.Second, SentBy: []string{"wan0"}}}
	}},
	{"route-changed@filter", RouteChanged, true, func(o *Observation) {
		o.FilterDrops = 3
		o.Stalled = []Stalled{{Source: netip.MustParseAddrPort("10.10.10.8:40000"), Silence: 12 * time.Second, SentBy: []string{"wan0"}, ArrivedAt: []string{"wan1"}}}
	}},
}

func TestJudge(t *testing.T) {
	for _, j := range judgements {
		t.Run(j.name, func(t *testing.T) {
			o := base()
			j.change(&o)
			v := Judge(o)
			if v.Cause != j.cause || v.Certain != j.certain {
				t.Errorf("got %s (certain: %v), want %s (certain: %v)", v.Cause, v.Certain, j.cause, j.certain)
			}
			if v.Certain == (v.Doubt != "") {
				t.Errorf("certain: %v, with the doubt %q", v.Certain, v.Doubt)
			}
			if needs := v.Cause != Healthy && v.Cause != Standby; needs != (len(v.Remedies) > 0) {
				t.Errorf("%s has the remedies %v", v.Cause, v.Remedies)
			}
			var got bytes.Buffer
			if err := v.WriteText(&got); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", j.name+".want")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The filter hands over what the verdicts need, and nothing else, and the parser reads it.
func TestFilter(t *testing.T) {
	raw, err := filter([]uint16{1000})
	if err != nil {
		t.Fatal(err)
	}
	var instructions []bpf.Instruction
	for _, r := range raw {
		instructions = append(instructions, bpf.RawInstruction{Op: r.Code, Jt: r.Jt, Jf: r.Jf, K: r.K}.Disassemble())
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	tcp := func(from, to uint16, flags byte) []byte {
		b := make([]byte, 20)
		binary.BigEndian.PutUint16(b, from)
		binary.BigEndian.PutUint16(b[2:], to)
		b[13] = flags
		return b
	}
	for _, c := range []struct {
		what            string
		protocol4, then byte // and IPv6's
		payload4, six   []byte
		taken           bool
	}{
		{"a SYN", unix.IPPROTO_TCP, unix.IPPROTO_TCP, tcp(1, 2, flagSYN), nil, true},
		{"an answer", unix.IPPROTO_TCP, unix.IPPROTO_TCP, tcp(1, 2, flagSYN|flagACK), nil, true},
		{"a reset", unix.IPPROTO_TCP, unix.IPPROTO_TCP, tcp(1, 2, flagRST), nil, true},
		{"data", unix.IPPROTO_TCP, unix.IPPROTO_TCP, tcp(1, 2, flagACK), nil, false},
		{"data of the port", unix.IPPROTO_TCP, unix.IPPROTO_TCP, tcp(1000, 2, flagACK), nil, true},
		{"data to the port", unix.IPPROTO_TCP, unix.IPPROTO_TCP, tcp(1, 1000, flagACK), nil, true},
		{"an echo reply", unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, []byte{0, 0, 0, 0, 0, 9, 0, 0}, []byte{129, 0, 0, 0, 0, 9, 0, 0}, true},
		{"an echo request", unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, []byte{8, 0, 0, 0, 0, 9, 0, 0}, []byte{128, 0, 0, 0, 0, 9, 0, 0}, false},
		{"an advert", protocolVRRP, protocolVRRP, []byte{0x31, 7, 100, 0, 0, 0, 0, 0}, nil, true},
		{"a datagram", unix.IPPROTO_UDP, unix.IPPROTO_UDP, tcp(1000, 1000, flagSYN), nil, false},
	} {
		four := make([]byte, 24) // with an option
		four[0], four[9] = 0x46, c.protocol4
		six := make([]byte, 40)
		six[0], six[6] = 0x60, c.then
		payload6 := c.six
		if payload6 == nil {
			payload6 = c.payload4
		}
		for _, b := range [][]byte{append(four, c.payload4...), append(six, payload6...)} {
			n, err := vm.Run(b)
			if err != nil || n > 0 != c.taken {
				t.Errorf("%s of version %d: %d, %v", c.what, b[0]>>4, n, err)
			}
			if _, ok := parsePacket(b); c.taken && !ok {
				t.Errorf("%s of version %d is not read", c.what, b[0]>>4)
			}
		}
	}
}

// FuzzPacket: no packet makes the parser fail.
func FuzzPacket(f *testing.F) {
	f.Add([]byte{0x4f, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(_ *testing.T, b []byte) { parsePacket(b) })
}
