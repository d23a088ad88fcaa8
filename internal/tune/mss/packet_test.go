package mss

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/checksum"
	"longhaul/internal/sys/kernel"
	"longhaul/lab/sandbox"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// testProgram is the program with a table of rules, attached to nothing.
func testProgram(t testing.TB, linkHeader uint32, rules ...Rule) *program {
	t.Helper()
	must(t, needPrivilege())
	p, err := loadProgram("", device{name: "test", linkHeader: linkHeader})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	var table []numbered
	for i, r := range rules {
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		table = append(table, numbered{uint32(i + 1), r})
	}
	if err := p.put(table); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRejected: a refusal by the verifier is one sentence, and its log is there.
func TestRejected(t *testing.T) {
	nettest.RequireRoot(t)
	must(t, needPrivilege())
	spec, err := parseObject()
	must(t, err)
	spec.Programs[programName].Instructions = asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 4096, asm.DWord), asm.Return()}
	_, err = intoKernel(spec, "", device{name: "test", linkHeader: 14})
	const want = "rewriting the MSS needs a kernel whose BPF verifier accepts it (Linux 5.10 or newer should): invalid bpf_context access"
	var unsupported *kernel.ErrUnsupported
	if !errors.As(err, &unsupported) || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error: %v", err)
	}
	if log := kernel.VerifierLog(err); !strings.Contains(log, "\n") || !strings.Contains(log, "invalid bpf_context access") {
		t.Errorf("log: %q", log)
	}
}

// run has the kernel run the program on a packet.
func (p *program) run(t testing.TB, packet []byte) []byte {
	t.Helper()
	out, err := p.try(packet)
	must(t, err)
	return out
}

func (p *program) try(packet []byte) ([]byte, error) {
	options := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256)}
	verdict, err := p.program.Run(&options)
	if err == nil && int32(verdict) != -1 {
		err = fmt.Errorf("the verdict is %d, which ends the packet's way", int32(verdict))
	}
	return options.DataOut, err
}

// syn describes a packet to build.
type syn struct {
	linkHeader   uint32
	vlans        []uint16
	version      int
	ipOptions    int // bytes of IPv4 options
	extensions   []layers.IPProtocol
	fragment     uint16 // IPv4: offset in eights
	more         bool
	from, to     string // addresses; sensible ones if empty
	sport, dport uint16
	ack, noSYN   bool
	options      []byte
	payload      int
	trailer      int // bytes behind the IP packet, as in short Ethernet frames
}

var (
	mssOption  = func(mss uint16) []byte { return []byte{2, 4, byte(mss >> 8), byte(mss)} }
	nop        = []byte{1}
	end        = []byte{0}
	sackOK     = []byte{4, 2}
	timestamps = []byte{8, 10, 1, 2, 3, 4, 0, 0, 0, 0}
	scale      = []byte{3, 3, 7}
	fastOpen   = []byte{34, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	md5        = append([]byte{19, 18}, make([]byte, 16)...)
	ao         = append([]byte{29, 16, 1, 2}, make([]byte, 12)...)
)

func options(parts ...[]byte) []byte { return slices.Concat(parts...) }

func (s syn) build(t testing.TB) []byte {
	t.Helper()
	if s.version == 0 {
		s.version = 4
	}
	from, to := "192.0.2.1", "198.51.100.2"
	if s.version == 6 {
		from, to = "2001:db8:1::1", "2001:db8:2::2"
	}
	if s.from != "" {
		from = s.from
	}
	if s.to != "" {
		to = s.to
	}
	tcp := &layers.TCP{
		SrcPort: 40000, DstPort: 5432, Seq: 12345, Window: 65535, SYN: !s.noSYN, ACK: s.ack || s.noSYN,
	}
	if s.sport != 0 {
		tcp.SrcPort = layers.TCPPort(s.sport)
	}
	if s.dport != 0 {
		tcp.DstPort = layers.TCPPort(s.dport)
	}
	// The options go in as they are: gopacket would put them in order.
	padded := append(slices.Clone(s.options), make([]byte, (4-len(s.options)%4)%4)...)
	payload := gopacket.Payload(bytes.Repeat([]byte{0xab}, s.payload))
	var all []gopacket.SerializableLayer
	is := layers.EthernetTypeIPv4
	if s.version == 6 {
		is = layers.EthernetTypeIPv6
	}
	if s.linkHeader > 0 {
		eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: is}
		all = append(all, eth)
		if len(s.vlans) > 0 {
			eth.EthernetType = layers.EthernetTypeDot1Q
			if len(s.vlans) > 1 {
				eth.EthernetType = layers.EthernetTypeQinQ
			}
		}
		for i, id := range s.vlans {
			tag := &layers.Dot1Q{VLANIdentifier: id, Type: is}
			if i < len(s.vlans)-1 {
				tag.Type = layers.EthernetTypeDot1Q
			}
			all = append(all, tag)
		}
	}
	var network gopacket.NetworkLayer
	segment := 20 + len(padded) + s.payload
	if s.version == 4 {
		ip := &layers.IPv4{Version: 4, IHL: uint8(5 + s.ipOptions/4), TTL: 64, Protocol: layers.IPProtocolTCP,
			SrcIP: net.ParseIP(from), DstIP: net.ParseIP(to), FragOffset: s.fragment, Flags: layers.IPv4DontFragment,
			Length: uint16(20 + s.ipOptions + segment)}
		if s.more {
			ip.Flags = layers.IPv4MoreFragments
		}
		for range s.ipOptions {
			ip.Options = append(ip.Options, layers.IPv4Option{OptionType: 1, OptionLength: 1})
		}
		network = ip
		all = append(all, ip)
	} else {
		extensions := 0
		for _, e := range s.extensions {
			extensions += 8
			if e == layers.IPProtocolIPv6Destination {
				extensions += 8
			}
		}
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP,
			SrcIP: net.ParseIP(from), DstIP: net.ParseIP(to), Length: uint16(extensions + segment)}
		network = ip
		all = append(all, ip)
		var raw []byte
		for i, e := range s.extensions {
			next := layers.IPProtocolTCP
			if i+1 < len(s.extensions) {
				next = s.extensions[i+1]
			}
			switch e {
			case layers.IPProtocolIPv6Fragment:
				raw = append(raw, byte(next), 0, byte(s.fragment>>5), byte(s.fragment<<3), 0, 0, 0, 9)
			case layers.IPProtocolIPv6Routing:
				raw = append(raw, byte(next), 0, 4, 0, 0, 0, 0, 0)
			case layers.IPProtocolIPv6Destination:
				raw = append(raw, byte(next), 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
			default:
				raw = append(raw, byte(next), 0, 1, 4, 0, 0, 0, 0)
			}
		}
		if len(s.extensions) > 0 {
			ip.NextHeader = s.extensions[0]
			all = append(all, gopacket.Payload(raw))
		}
	}
	if err := tcp.SetNetworkLayerForChecksum(network); err != nil {
		t.Fatal(err)
	}
	// Header, options and payload in one, with the checksum over all of it.
	header := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(header, gopacket.SerializeOptions{FixLengths: true}, tcp))
	whole := slices.Concat(header.Bytes(), padded, payload)
	whole[12] = byte((20 + len(padded)) / 4 << 4)
	buffer := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{ComputeChecksums: true}, append(all, whole)...))
	packet := slices.Clone(buffer.Bytes())
	at := len(packet) - len(whole)
	binary.BigEndian.PutUint16(packet[at+16:], checksum.Of(pseudoHeader(from, to, len(whole)), whole))
	return append(packet, make([]byte, s.trailer)...)
}

var must = nettest.Must

func pseudoHeader(from, to string, segment int) []byte {
	b := append(netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(segment))
	return append(b, 0, 0, 0, 6)
}

// decodeMSS has an independent decoder look at a packet: it verifies all of its
// checksums and returns the MSS.
func decodeMSS(t testing.TB, packet []byte, linkHeader uint32, version int) int {
	t.Helper()
	first := gopacket.Decoder(layers.LayerTypeEthernet)
	if linkHeader == 0 {
		first = layers.LayerTypeIPv4
		if version == 6 {
			first = layers.LayerTypeIPv6
		}
	}
	decoded := gopacket.NewPacket(packet, first, gopacket.Default)
	tcp, ok := decoded.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok {
		t.Fatalf("the rewritten packet is not TCP:\n%v", decoded)
	}
	must(t, tcp.SetNetworkLayerForChecksum(decoded.NetworkLayer()))
	if err, wrong := decoded.VerifyChecksums(); err != nil || len(wrong) > 0 {
		t.Fatalf("the rewritten packet's checksums: %v, %v\n%v", err, wrong, decoded)
	}
	for _, o := range tcp.Options {
		if o.OptionType == layers.TCPOptionKindMSS {
			return int(binary.BigEndian.Uint16(o.OptionData))
		}
	}
	t.Fatalf("the rewritten packet has no MSS:\n%v", decoded)
	return 0
}

// packets are SYNs with an MSS of 460, most of them, and what becomes of it
// where the rule raises to 1460; 0 if the packet is not to be touched.
func packets() map[string]struct {
	syn
	want int
} {
	const eth = ethernetHeader
	type c = struct {
		syn
		want int
	}
	m := mssOption(460)
	hop, routing, dst, frag := layers.IPProtocolIPv6HopByHop, layers.IPProtocolIPv6Routing, layers.IPProtocolIPv6Destination, layers.IPProtocolIPv6Fragment
	return map[string]c{
		"plain":                  {syn{linkHeader: eth, options: m}, 1460},
		"SYN-ACK":                {syn{linkHeader: eth, options: m, ack: true}, 1460},
		"usual options":          {syn{linkHeader: eth, options: options(m, sackOK, timestamps, nop, scale)}, 1460},
		"odd":                    {syn{linkHeader: eth, options: options(nop, m)}, 1460},
		"odd, behind others":     {syn{linkHeader: eth, options: options(scale, sackOK, timestamps, m)}, 1460},
		"even, NOPs before":      {syn{linkHeader: eth, options: options(nop, nop, m)}, 1460},
		"behind timestamps":      {syn{linkHeader: eth, options: options(nop, nop, timestamps, m, nop)}, 1460},
		"end of list behind":     {syn{linkHeader: eth, options: options(m, end)}, 1460},
		"end of list before":     {syn{linkHeader: eth, options: options(end, m)}, 0},
		"full header":            {syn{linkHeader: eth, options: options(m, sackOK, timestamps, fastOpen, scale, scale, nop, nop, sackOK, sackOK, sackOK)}, 1460},
		"fast open with data":    {syn{linkHeader: eth, options: options(m, nop, nop, fastOpen), payload: 1001}, 1460},
		"odd, fast open, data":   {syn{linkHeader: eth, options: options(nop, fastOpen, m), payload: 400}, 1460},
		"no options":             {syn{linkHeader: eth}, 0},
		"no MSS":                 {syn{linkHeader: eth, options: options(sackOK, timestamps)}, 0},
		"large already":          {syn{linkHeader: eth, options: mssOption(8960)}, 0},
		"the same already":       {syn{linkHeader: eth, options: mssOption(1460)}, 0},
		"MSS of 0":               {syn{linkHeader: eth, options: mssOption(0)}, 0},
		"not a SYN":              {syn{linkHeader: eth, options: m, noSYN: true}, 0},
		"two MSS":                {syn{linkHeader: eth, options: options(m, m)}, 0},
		"MSS of three bytes":     {syn{linkHeader: eth, options: []byte{2, 3, 1}}, 0},
		"MSS of six bytes":       {syn{linkHeader: eth, options: []byte{2, 6, 1, 204, 0, 0}}, 0},
		"length 0":               {syn{linkHeader: eth, options: options([]byte{8, 0}, m)}, 0},
		"length 1":               {syn{linkHeader: eth, options: options([]byte{8, 1}, m)}, 0},
		"length beyond the end":  {syn{linkHeader: eth, options: options(m, []byte{8, 40, 0, 0})}, 0},
		"kind at the last byte":  {syn{linkHeader: eth, options: options(m, nop, nop, nop, []byte{8})}, 0},
		"MSS cut short":          {syn{linkHeader: eth, options: options(nop, nop, []byte{2, 4})}, 0},
		"MD5":                    {syn{linkHeader: eth, options: options(m, md5)}, 0},
		"MD5 before":             {syn{linkHeader: eth, options: options(md5, m)}, 0},
		"AO":                     {syn{linkHeader: eth, options: options(m, ao)}, 0},
		"IPv4 options":           {syn{linkHeader: eth, ipOptions: 12, options: m}, 1460},
		"IPv4, all options":      {syn{linkHeader: eth, ipOptions: 40, options: options(nop, m)}, 1460},
		"first fragment":         {syn{linkHeader: eth, options: m, more: true}, 0},
		"last fragment":          {syn{linkHeader: eth, options: m, fragment: 4}, 0},
		"one tag":                {syn{linkHeader: eth, vlans: []uint16{7}, options: options(nop, m)}, 1460},
		"two tags":               {syn{linkHeader: eth, vlans: []uint16{7, 8}, options: m}, 1460},
		"three tags":             {syn{linkHeader: eth, vlans: []uint16{7, 8, 9}, options: m}, 0},
		"padded frame":           {syn{linkHeader: eth, options: m, trailer: 10}, 1460},
		"no link header":         {syn{options: options(nop, m)}, 1460},
		"IPv6":                   {syn{linkHeader: eth, version: 6, options: m}, 1460},
		"IPv6, odd":              {syn{linkHeader: eth, version: 6, options: options(nop, m)}, 1460},
		"IPv6, no link header":   {syn{version: 6, options: m}, 1460},
		"IPv6, tagged":           {syn{linkHeader: eth, version: 6, vlans: []uint16{7}, options: m}, 1460},
		"IPv6, hop by hop":       {syn{linkHeader: eth, version: 6, extensions: []layers.IPProtocol{hop}, options: m}, 1460},
		"IPv6, three extensions": {syn{linkHeader: eth, version: 6, extensions: []layers.IPProtocol{hop, routing, dst}, options: options(nop, m)}, 1460},
		"IPv6, eight extensions": {syn{linkHeader: eth, version: 6, extensions: []layers.IPProtocol{hop, dst, dst, dst, dst, dst, dst, dst}, options: m}, 1460},
		"IPv6, nine extensions":  {syn{linkHeader: eth, version: 6, extensions: []layers.IPProtocol{hop, dst, dst, dst, dst, dst, dst, dst, dst}, options: m}, 0},
		"IPv6 fragment":          {syn{linkHeader: eth, version: 6, extensions: []layers.IPProtocol{frag}, fragment: 3, options: m}, 0},
		"IPv6, only fragment":    {syn{linkHeader: eth, version: 6, extensions: []layers.IPProtocol{frag}, options: m}, 0},
	}
}

// TestPackets has the kernel run the program on one packet of each kind.
func TestPackets(t *testing.T) {
	nettest.RequireRoot(t)
	programs := map[uint32]*program{}
	for _, header := range []uint32{0, ethernetHeader} {
		programs[header] = testProgram(t, header, Rule{Action: Raise, MSS: 1460})
	}
	for name, c := range packets() {
		t.Run(name, func(t *testing.T) {
			in := c.build(t)
			out := programs[c.linkHeader].run(t, in)
			if c.want == 0 {
				if !bytes.Equal(in, out) {
					t.Fatalf("the packet was changed:\n% x\n% x", in, out)
				}
				return
			}
			checkOnlyMSSChanged(t, in, out)
			if got := decodeMSS(t, out, c.linkHeader, max(c.version, 4)); got != c.want {
				t.Errorf("the MSS is %d, want %d", got, c.want)
			}
		})
	}
}

// checkOnlyMSSChanged compares byte by byte: at most two bytes of checksum, and
// two of MSS behind an option's 2 and 4.
func checkOnlyMSSChanged(t testing.TB, in, out []byte) {
	t.Helper()
	if len(in) != len(out) {
		t.Fatalf("the packet's length went from %d to %d", len(in), len(out))
	}
	var changed []int
	for i := range in {
		if in[i] != out[i] {
			changed = append(changed, i)
		}
	}
	if len(changed) == 0 || len(changed) > 4 {
		t.Fatalf("bytes %v were changed", changed)
	}
}

// TestChecksumsThatWereWrong: a damaged packet must stay one.
func TestChecksumsThatWereWrong(t *testing.T) {
	nettest.RequireRoot(t)
	p := testProgram(t, 0, Rule{Action: Raise, MSS: 1460})
	in := syn{options: mssOption(460)}.build(t)
	in[20+16] ^= 0x55
	out := p.run(t, in)
	if bytes.Equal(in, out) {
		t.Fatal("the packet was not changed")
	}
	if got := checksum.Sum(pseudoHeader("192.0.2.1", "198.51.100.2", len(out)-20), out[20:]); got == 0xffff {
		t.Error("a wrong checksum has become right")
	}
}

// TestEveryValue goes through all pairs that matter for a checksum's carries.
func TestEveryValue(t *testing.T) {
	nettest.RequireRoot(t)
	values := []uint16{88, 255, 256, 460, 536, 1220, 1280, 1459, 1460, 8960, 0x7fff, 0xff00, 0xfffe, 0xffff}
	p := testProgram(t, 0)
	for _, to := range values {
		for _, action := range []Action{Raise, Clamp} {
			must(t, p.put([]numbered{{1, Rule{Action: action, MSS: int(to)}}}))
			for _, from := range values {
				for _, before := range [][]byte{nil, nop} {
					in := syn{options: options(before, mssOption(from))}.build(t)
					got := decodeMSS(t, p.run(t, in), 0, 4)
					want := max(from, to)
					if action == Clamp {
						want = min(from, to)
					}
					if got != int(want) {
						t.Errorf("%s to %d of %d gave %d", action, to, from, got)
					}
				}
			}
		}
	}
}

// TestMatching is about which SYN a rule is for: data runs against it.
func TestMatching(t *testing.T) {
	nettest.RequireRoot(t)
	raise := func(toward, from string, port uint16, mss int) Rule {
		r := Rule{Action: Raise, MSS: mss, Port: port}
		if toward != "" {
			r.To = netip.MustParsePrefix(toward)
		}
		if from != "" {
			r.From = netip.MustParsePrefix(from)
		}
		return r
	}
	p := testProgram(t, 0,
		raise("192.0.2.0/24", "", 0, 1000),
		raise("192.0.2.128/25", "", 0, 1001),
		raise("192.0.2.0/24", "203.0.113.0/24", 0, 1002),
		raise("", "198.51.100.0/24", 0, 1003),
		raise("", "", 80, 1004),
		raise("2001:db8::/47", "", 0, 1300),
		raise("2001:db8:1::1/128", "", 443, 1301),
		raise("::/0", "", 0, 1302),
	)
	for _, c := range []struct {
		s    syn
		want int
	}{
		{syn{from: "192.0.2.1", to: "10.0.0.1"}, 1000},
		{syn{from: "192.0.2.129", to: "10.0.0.1"}, 1001},
		{syn{from: "192.0.2.129", to: "203.0.113.9"}, 1002}, // more bits in all
		{syn{from: "192.0.3.1", to: "198.51.100.7"}, 1003},
		{syn{from: "192.0.3.1", to: "198.51.100.7", dport: 80}, 1004}, // a port before prefixes
		{syn{from: "10.9.9.9", to: "10.0.0.1", sport: 80}, 1004},
		{syn{from: "10.0.0.1", to: "192.0.2.1"}, 460}, // data from there
		{syn{version: 6}, 1300},
		{syn{version: 6, dport: 443}, 1301},
		{syn{version: 6, from: "2001:db8:2::1"}, 1302},
		{syn{version: 6, from: "2001:db8:2::1", dport: 80}, 1004},
	} {
		c.s.options = mssOption(460)
		if got := decodeMSS(t, p.run(t, c.s.build(t)), 0, max(c.s.version, 4)); got != c.want {
			t.Errorf("from %s port %d to %s port %d: the MSS is %d, want %d", c.s.from, c.s.sport, c.s.to, c.s.dport, got, c.want)
		}
	}
}

func TestCounters(t *testing.T) {
	nettest.RequireRoot(t)
	p := testProgram(t, 0, Rule{Action: Raise, MSS: 1460})
	p.run(t, syn{options: mssOption(460)}.build(t))
	p.run(t, syn{options: mssOption(536)}.build(t))
	p.run(t, syn{options: mssOption(1460)}.build(t))
	p.run(t, syn{}.build(t))
	p.run(t, syn{noSYN: true}.build(t))
	var c counters
	must(t, p.counters.Lookup(uint32(1), &c))
	if c.Matched != 4 || c.Rewritten != 2 || c.Last != 536<<16|1460 || c.LastNS == 0 {
		t.Errorf("the counters are %+v", c)
	}
}

// FuzzPacket has the kernel run the program on whatever comes: it changes the
// bytes of one MSS option and of the checksum, by the same amount, or nothing.
func FuzzPacket(f *testing.F) {
	if os.Geteuid() != 0 || sandbox.UserNamespace() {
		f.Skip("needs root outside a user namespace")
	}
	for _, c := range packets() {
		f.Add(c.build(f), c.linkHeader == 0)
	}
	programs := map[bool]*program{}
	for raw, header := range map[bool]uint32{true: 0, false: ethernetHeader} {
		programs[raw] = testProgram(f, header, Rule{Action: Raise, MSS: 1460})
	}
	f.Fuzz(func(t *testing.T, packet []byte, raw bool) {
		if len(packet) < ethernetHeader+1 || len(packet) > 4000 {
			t.Skip("the kernel's test wants a frame that fits a page")
		}
		out, err := programs[raw].try(packet)
		if errors.Is(err, unix.EINVAL) {
			t.Skip("the kernel's test refuses frames that end within an IP header")
		}
		must(t, err)
		if bytes.Equal(packet, out) {
			return
		}
		if why := whatChanged(packet, out); why != "" {
			t.Errorf("%s:\n% x\n% x", why, packet, out)
		}
	})
}

// whatChanged says what is wrong with a change.
func whatChanged(in, out []byte) string {
	if len(in) != len(out) {
		return "the length changed"
	}
	first, last := -1, 0
	for i := range in {
		if in[i] != out[i] {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	// The checksum may come out the same; the MSS never does. Its option is
	// the last that changed.
	for _, at := range []int{last, last - 1} {
		if at < 4+4 || at+2 > len(in) || in[at-2] != 2 || in[at-1] != 4 {
			continue
		}
		if binary.BigEndian.Uint16(out[at:]) != 1460 || binary.BigEndian.Uint16(in[at:]) >= 1460 {
			return "another value than wanted"
		}
		// From the checksum, at 16 of the header, to the option, at 20 or more.
		for field := at - 4 - 38; field <= at-6; field++ {
			if field < 0 || first < field {
				continue
			}
			a, b := slices.Clone(in), slices.Clone(out)
			copy(a[field:], []byte{0, 0})
			copy(b[field:], []byte{0, 0})
			copy(a[at:], []byte{0, 0})
			copy(b[at:], []byte{0, 0})
			if bytes.Equal(a, b) && first <= field+1 &&
				checksum.Sum(in[field:]) == checksum.Sum(out[field:]) {
				return ""
			}
		}
	}
	return fmt.Sprintf("bytes %d to %d are not an MSS and its checksum", first, last)
}
