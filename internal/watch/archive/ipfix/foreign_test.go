package ipfix

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/watch/archive"
	"longhaul/test/nettest"
)

// Readers of others: nfcapd of nfdump, nfacctd of pmacct and goflow2 take UDP only, in the versions of
// Debian 12 and v2.2.1. Over TCP there is libfixbuf, by ipfixDump, and tshark reads both.

// ends are what every collector has of a record beside its octets. IPv4 mapped into IPv6 is IPv4 here, and an
// address that is not there is the zero one: collectors differ.
type ends struct {
	source, destination         netip.Addr
	sourcePort, destinationPort uint16
}

// octets are those of records between the same ends, each way.
type octets struct{ forth, back int64 }

func endsOf(source, destination netip.Addr, sourcePort, destinationPort uint16) ends {
	if source = source.Unmap(); source.IsUnspecified() {
		source = netip.Addr{}
	}
	if destination = destination.Unmap(); destination.IsUnspecified() {
		destination = netip.Addr{}
	}
	return ends{source, destination, sourcePort, destinationPort}
}

// sums are the records of rows as collectors show them.
type sums map[ends]octets

func (s sums) add(e ends, forth, back int64) {
	o := s[e]
	s[e] = octets{o.forth + forth, o.back + back}
}

func sumsOf(rows []archive.Row, biflow bool) sums {
	all := sums{}
	for i := range rows {
		row := &rows[i]
		e := endsOf(row.ClientPrefix().Addr(), row.Target.Addr(), row.ClientPort(), row.Target.Port())
		if biflow {
			all.add(e, row.BytesUp, row.BytesDown)
			continue
		}
		all.add(e, row.BytesUp, 0)
		all.add(ends{e.destination, e.source, e.destinationPort, e.sourcePort}, row.BytesDown, 0)
	}
	return all
}

func (got sums) compare(t *testing.T, want sums) {
	t.Helper()
	for e, o := range want {
		if g, has := got[e]; g != o || !has {
			t.Fatalf("%+v has %+v (%v), want %+v", e, g, has, o)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d pairs of ends, want %d", len(got), len(want))
	}
}

// table adds the rows of a table of comma separated values, which has these columns; octets back may have none.
func (s sums) table(t *testing.T, text []byte, source, destination, sourcePort, destinationPort, forth, back string) {
	t.Helper()
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		nettest.Must(t, err)
		return n
	}
	var columns map[string]int
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if f[0] == "Summary" {
			break
		}
		if columns == nil {
			columns = map[string]int{}
			for i, name := range f {
				columns[name] = i
			}
			continue
		}
		if len(f) != len(columns) {
			t.Fatalf("a row of %d columns, want %d: %s", len(f), len(columns), line)
		}
		var o octets
		o.forth = number(f[columns[forth]])
		if back != "" {
			o.back = number(f[columns[back]])
		}
		s.add(endsOf(netip.MustParseAddr(f[columns[source]]), netip.MustParseAddr(f[columns[destination]]),
			uint16(number(f[columns[sourcePort]])), uint16(number(f[columns[destinationPort]]))), o.forth, o.back)
	}
}

// freePort is one that a program of others can be given: they do not say which they chose.
func freePort(t testing.TB) int {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	nettest.Must(t, err)
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).Port
}

// udpSocket is the state of the socket of a port: octets that wait to be read and datagrams dropped.
func udpSocket(t testing.TB, port int) (waits, drops int, open bool) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/udp")
	nettest.Must(t, err)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) >= 13 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			_, queue, _ := strings.Cut(f[4], ":")
			n, err := strconv.ParseInt(queue, 16, 64)
			nettest.Must(t, err)
			d, err := strconv.Atoi(f[12])
			nettest.Must(t, err)
			return int(n), d, true
		}
	}
	return 0, 0, false
}

// program is one of others that runs until the test, or end, ends it.
type program struct {
	cmd  *exec.Cmd
	said bytes.Buffer
	done chan error
}

func start(t testing.TB, name string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(name, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	p.cmd.Env = append(os.Environ(), "TZ=UTC")
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	nettest.Must(t, p.cmd.Start())
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { p.end(unix.SIGKILL) })
	return p
}

// end signals the program with its children, and returns when it has ended.
func (p *program) end(signal unix.Signal) string {
	_ = unix.Kill(-p.cmd.Process.Pid, signal)
	err, ok := <-p.done
	if ok {
		close(p.done)
	}
	return fmt.Sprintf("%v: %s", err, p.said.String())
}

// deliverUDP sends rows to a program that listens at a port, and returns when it has read everything.
func deliverUDP(t *testing.T, p *program, port int, rows []archive.Row, biflow bool) {
	t.Helper()
	nettest.Eventually(t, patience, func() bool {
		_, _, open := udpSocket(t, port)
		return open
	}, func() string { return "it does not listen: " + p.end(unix.SIGKILL) })
	s := sinkTo(t, fmt.Sprintf("ipfix+udp://127.0.0.1:%d", port), func(t *archive.Target) { t.Biflow = biflow })
	nettest.Must(t, s.Deliver(patient(t), rows))
	nettest.Eventually(t, patience, func() bool {
		waits, _, _ := udpSocket(t, port)
		return waits == 0
	}, func() string { return "it does not read" })
	if _, drops, _ := udpSocket(t, port); drops > 0 {
		t.Fatalf("%d datagrams found no room in its socket", drops)
	}
}

// nfcapd has the octets of both directions, with biflow in one record.
func TestNfcapd(t *testing.T) {
	nfcapd, nfdump := nettest.RequireProgram(t, "nfcapd", "nfdump"), nettest.RequireProgram(t, "nfdump", "nfdump")
	for _, biflow := range []bool{true, false} {
		dir, port := t.TempDir(), freePort(t)
		p := start(t, nfcapd, "-w", dir, "-b", "127.0.0.1", "-p", strconv.Itoa(port), "-B", "8000000")
		rows := makeRows(11, 1000)
		deliverUDP(t, p, port, rows, biflow)
		if said := p.end(unix.SIGTERM); !strings.Contains(said, "Sequence Errors: 0, Bad Packets: 0") {
			t.Errorf("nfcapd says %s", said)
		}
		text, err := exec.Command(nfdump, "-R", dir, "-o", "csv").Output()
		nettest.Must(t, err)
		got := sums{}
		got.table(t, text, "sa", "da", "sp", "dp", "ibyt", "obyt")
		got.compare(t, sumsOf(rows, biflow))
	}
}

// nfacctd knows no biflow. It reads a capture: its core gives what it has from a socket to its plugins
// in groups, the last of which waits for further records.
func TestNfacctd(t *testing.T) {
	nfacctd, text2pcap := nettest.RequireProgram(t, "nfacctd", "pmacct"), nettest.RequireProgram(t, "text2pcap", "wireshark-common")
	dir := t.TempDir()
	capture, file, config := filepath.Join(dir, "messages"), filepath.Join(dir, "flows.csv"), filepath.Join(dir, "nfacctd.conf")
	rows := makeRows(12, 1000)
	wrap(t, text2pcap, encode(t, rows, maxUDP, false), capture, "-u", "40000,4739")
	nettest.Must(t, os.WriteFile(config, fmt.Appendf(nil, `daemonize: false
pcap_savefile: %s
plugins: print
aggregate: src_host, dst_host, src_port, dst_port, proto
print_output: csv
print_output_file: %s
`, capture, file), 0o600))
	p := start(t, nfacctd, "-f", config)
	var text []byte
	nettest.Eventually(t, patience, func() bool {
		text, _ = os.ReadFile(file)
		return bytes.Count(text, []byte("\n")) > 2*len(rows)
	}, func() string { return p.end(unix.SIGKILL) })
	p.end(unix.SIGKILL)
	got := sums{}
	got.table(t, text, "SRC_IP", "DST_IP", "SRC_PORT", "DST_PORT", "BYTES", "")
	got.compare(t, sumsOf(rows, false))
}

// wrap writes packets as a capture.
func wrap(t *testing.T, text2pcap string, packets [][]byte, file string, headers ...string) {
	t.Helper()
	var dump bytes.Buffer
	for _, p := range packets {
		for i := 0; i < len(p); i += 16 {
			fmt.Fprintf(&dump, "%06x % x\n", i, p[i:min(i+16, len(p))])
		}
		dump.WriteString("\n")
	}
	cmd := exec.Command(text2pcap, append(headers, "-F", "pcap", "-q", "-", file)...)
	cmd.Stdin = &dump
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("text2pcap: %v: %s", err, said)
	}
}

// goflow2 knows no biflow. Its default mapping has octetDeltaCount, and not octetTotalCount.
func TestGoflow2(t *testing.T) {
	if testing.Short() {
		t.Skip("builds goflow2")
	}
	bin := t.TempDir()
	build := exec.Command("go", "install", "github.com/netsampler/goflow2/v2/cmd/goflow2@v2.2.1")
	build.Env = append(os.Environ(), "GOBIN="+bin, "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("CI must be able to run this: %v: %s", err, said)
		}
		t.Skipf("needs the Go module github.com/netsampler/goflow2/v2: %v: %s", err, said)
	}
	port, file := freePort(t), filepath.Join(bin, "flows.json")
	p := start(t, filepath.Join(bin, "goflow2"), "-listen", fmt.Sprintf("netflow://127.0.0.1:%d", port), "-addr", "127.0.0.1:0", "-transport.file", file)
	rows := makeRows(13, 1000)
	deliverUDP(t, p, port, rows, false)
	got := sums{}
	records := 0
	nettest.Eventually(t, patience, func() bool {
		text, _ := os.ReadFile(file)
		records = bytes.Count(text, []byte("\n"))
		return records >= 2*len(rows)
	}, func() string { return fmt.Sprintf("%d of %d records: %s", records, 2*len(rows), p.end(unix.SIGKILL)) })
	p.end(unix.SIGKILL)
	text, err := os.ReadFile(file)
	nettest.Must(t, err)
	for line := range bytes.Lines(text) {
		var r struct {
			Bytes       int64      `json:"bytes"`
			Source      netip.Addr `json:"src_addr"`
			Destination netip.Addr `json:"dst_addr"`
			SourcePort  uint16     `json:"src_port"`
			DestPort    uint16     `json:"dst_port"`
			Domain      uint32     `json:"observation_domain_id"`
		}
		nettest.Must(t, json.Unmarshal(line, &r))
		if r.Domain != domainOf(rows[0].Relay) {
			t.Fatalf("domain %d", r.Domain)
		}
		got.add(endsOf(r.Source, r.Destination, r.SourcePort, r.DestPort), r.Bytes, 0)
	}
	got.compare(t, sumsOf(rows, false))
}

// ipfixDump reads connections, and names the private elements by the types that come with them.
func TestIPFIXDump(t *testing.T) {
	ipfixDump := nettest.RequireProgram(t, "ipfixDump", "libfixbuf-tools")
	for _, biflow := range []bool{true, false} {
		rows := makeRows(14, 2000)
		l := listen(t)
		dump := exec.Command(ipfixDump, "--rfc5610", "-d")
		var said, text bytes.Buffer
		dump.Stdout, dump.Stderr = &text, &said
		in, err := dump.StdinPipe()
		nettest.Must(t, err)
		nettest.Must(t, dump.Start())
		copied := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				_, err = io.Copy(in, conn)
				conn.Close()
			}
			in.Close()
			copied <- err
		}()
		s := sinkTo(t, "ipfix://"+l.Addr().String(), func(t *archive.Target) { t.Biflow = biflow })
		nettest.Must(t, s.Deliver(patient(t), rows))
		nettest.Must(t, s.Close())
		nettest.Must(t, <-copied)
		l.Close()
		if err := dump.Wait(); err != nil {
			t.Fatalf("ipfixDump: %v: %s", err, said.String())
		}
		got, want := sums{}, sumsOf(rows, biflow)
		names := map[string]int{}
		var r map[string]string
		done := func() {
			if r["sourceTransportPort"] == "" {
				return
			}
			number := func(name string) int64 {
				n, _ := strconv.ParseInt(r[name], 10, 64)
				return n
			}
			addr := func(name string) netip.Addr {
				a, err := netip.ParseAddr(r[name+"IPv4Address"])
				if err != nil {
					a, err = netip.ParseAddr(r[name+"IPv6Address"])
				}
				nettest.Must(t, err)
				return a
			}
			got.add(endsOf(addr("source"), addr("destination"), uint16(number("sourceTransportPort")), uint16(number("destinationTransportPort"))),
				number("octetDeltaCount"), number("reverseOctetDeltaCount"))
			for name := range r {
				names[name]++
			}
			if r["relay"] != "(len: 19) relay-a.example.net" && r["relay"] != "relay-a.example.net" || number("epoch") != 77 {
				t.Fatalf("%v", r)
			}
		}
		for line := range bytes.Lines(text.Bytes()) {
			if bytes.HasPrefix(line, []byte("---")) {
				done()
				r = map[string]string{}
			} else if m := dumpedField.FindSubmatch(line); m != nil {
				r[string(m[1])] = string(m[2])
			}
		}
		done()
		got.compare(t, want)
		for _, p := range private {
			if has := names[p.name] > 0; has != (p.name != "direction" || !biflow) {
				t.Errorf("biflow %v: ipfixDump names %s: %v", biflow, p.name, has)
			}
		}
	}
}

var dumpedField = regexp.MustCompile(`^\t\(\S+\)\s+(?:\(S\)\s+)?(\w+) : (.*?)\s*$`)

// tsharkElements are the elements that tshark names otherwise.
var tsharkElements = map[string]uint16{
	"cflow.abstimestart": 152, "cflow.abstimeend": 153, "cflow.srcaddr": 8, "cflow.dstaddr": 12, "cflow.srcaddrv6": 27, "cflow.dstaddrv6": 28,
	"cflow.srcmask": 9, "cflow.dstmask": 13, "cflow.srcmaskv6": 29, "cflow.dstmaskv6": 30, "cflow.srcport": 7, "cflow.dstport": 11, "cflow.protocol": 4,
	"cflow.octets64": 1, "cflow.octets": 1, "cflow.flow_end_reason": 136, "cflow.flow_id": 148,
}

var tsharkPrivate = regexp.MustCompile(`Type (\d+): Value \(hex bytes\): ([0-9a-f ]*)`)

// packetField is a field of tshark's PDML.
type packetField struct {
	Name     string        `xml:"name,attr"`
	Show     string        `xml:"show,attr"`
	ShowName string        `xml:"showname,attr"`
	Value    string        `xml:"value,attr"`
	Fields   []packetField `xml:"field"`
}

// flows are the data records of flows under a field, each element in hexadecimal digits.
func (f *packetField) flows(t *testing.T, found *[]map[specifier]string) {
	if f.Name == "" && strings.HasPrefix(f.Show, "Flow ") {
		r := map[specifier]string{}
		f.elements(t, r)
		if _, types := r[specifier{id: 346}]; !types && r[specifier{id: 152}] != "" {
			*found = append(*found, r)
		}
		return
	}
	for i := range f.Fields {
		f.Fields[i].flows(t, found)
	}
}

func (f *packetField) elements(t *testing.T, r map[specifier]string) {
	for i := range f.Fields {
		e := &f.Fields[i]
		if strings.HasPrefix(e.Name, "_ws.malformed") || strings.HasPrefix(e.Name, "_ws.expert") {
			t.Errorf("tshark: %s", e.ShowName)
		}
		if m := tsharkPrivate.FindStringSubmatch(e.ShowName); m != nil {
			id, err := strconv.ParseUint(m[1], 10, 16)
			nettest.Must(t, err)
			r[specifier{enterprise: enterprise, id: uint16(id)}] = strings.ReplaceAll(m[2], " ", "")
		} else if id := tsharkElements[e.Name]; id != 0 {
			s := specifier{id: id}
			if strings.Contains(e.ShowName, "Reverse Type 1 ") {
				s.enterprise = reverseEnterprise
			}
			r[s] = e.Value
		}
		e.elements(t, r)
	}
}

// TestTshark reads messages with tshark and with the tests' own decoder, in packets of UDP, of TCP whose
// segments begin and end anywhere, and as a file (RFC 5655). Both find the same.
func TestTshark(t *testing.T) {
	tshark, text2pcap := nettest.RequireProgram(t, "tshark", "tshark"), nettest.RequireProgram(t, "text2pcap", "wireshark-common")
	for _, test := range []struct {
		name    string
		maxLen  int
		rows    int
		biflow  bool
		segment int      // octets of a packet; 0: a message
		wrap    []string // of text2pcap; none: a file
	}{
		{"file", maxTCP, 600, true, 0, nil},
		{"file", maxTCP, 100, false, 0, nil},
		{"UDP", maxUDP, 150, true, 0, []string{"-u", "40000,4739"}},
		{"UDP", maxUDP, 70, false, 0, []string{"-u", "40000,4739"}},
		{"TCP", maxTCP, 600, true, 1448, []string{"-T", "40000,4739"}},
	} {
		t.Run(fmt.Sprintf("%s, biflow %v", test.name, test.biflow), func(t *testing.T) {
			rows := makeRows(15, test.rows)
			odd := &rows[1]
			odd.Tunnel, odd.Site, odd.OwnSite = strings.Repeat("tünnel", 60), "s\xffite", "" // what others may send
			messages := encode(t, rows, test.maxLen, test.biflow)
			file := filepath.Join(t.TempDir(), "messages")
			stream := bytes.Join(messages, nil)
			if test.wrap == nil {
				nettest.Must(t, os.WriteFile(file, stream, 0o600))
			} else {
				packets := messages
				if test.segment > 0 {
					packets = slices.Collect(slices.Chunk(stream, test.segment))
				}
				wrap(t, text2pcap, packets, file, test.wrap...)
			}
			cmd := exec.Command(tshark, "-r", file, "-T", "pdml", "-d", "udp.port==4739,cflow", "-d", "tcp.port==4739,cflow")
			text, err := cmd.Output()
			nettest.Must(t, err)
			var packets struct {
				Packets []struct {
					Protocols []packetField `xml:"proto"`
				} `xml:"packet"`
			}
			nettest.Must(t, xml.Unmarshal(text, &packets))
			var theirs []map[specifier]string
			for _, p := range packets.Packets {
				for i := range p.Protocols {
					if strings.HasPrefix(p.Protocols[i].Name, "_ws.malformed") {
						t.Error("tshark: a malformed packet")
					}
					p.Protocols[i].flows(t, &theirs)
				}
			}
			var ours []map[specifier]string
			d := newDecoder()
			for _, m := range messages {
				nettest.Must(t, d.message(m, func(r decoded) {
					if r.template == typesTemplate {
						return
					}
					values := map[specifier]string{}
					for s, v := range r.values {
						if s.enterprise == enterprise {
							v = v[:min(len(v), 24)] // tshark shows no more of them
						}
						if len(v) > 0 { // nor empty ones
							values[s] = hex.EncodeToString(v)
						}
					}
					ours = append(ours, values)
				}))
			}
			if len(theirs) != len(ours) || len(ours) < test.rows {
				t.Fatalf("tshark has %d records, the own decoder %d", len(theirs), len(ours))
			}
			for i := range ours {
				if !maps.Equal(theirs[i], ours[i]) {
					t.Fatalf("record %d: tshark has\n%v, the own decoder\n%v", i, theirs[i], ours[i])
				}
			}
		})
	}
}
