package zonetransfer

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/linktest"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func TestWriteZone(t *testing.T) {
	var a, b, c bytes.Buffer
	for out, seed := range map[*bytes.Buffer]uint64{&a: 1, &b: 1, &c: 2} {
		if err := writeZone(out, 3, rand.New(rand.NewPCG(seed, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if a.String() != b.String() || a.String() == c.String() {
		t.Error("a zone is not that of its seed")
	}
	lines := strings.Split(strings.TrimSpace(a.String()), "\n")
	if len(lines) != 5+3 || !strings.HasPrefix(lines[7], "h0000002 A 198.1") {
		t.Errorf("the zone is\n%s", a.String())
	}
}

func TestUpdateMessage(t *testing.T) {
	message, err := updateMessage(zoneName, []addressChange{{hostName(7), [4]byte{198, 18, 0, 1}}, {hostName(8), [4]byte{198, 18, 0, 2}}})
	if err != nil {
		t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(message); err != nil {
		t.Fatal(err)
	}
	if m.OpCode != 5 || len(m.Questions) != 1 || m.Questions[0].Type != dnsmessage.TypeSOA || len(m.Answers) != 0 || len(m.Authorities) != 4 {
		t.Fatalf("the update is %v", m.GoString())
	}
	remove, add := m.Authorities[2].Header, m.Authorities[3].Header
	if remove.Class != 255 || remove.TTL != 0 || remove.Length != 0 || remove.Name != hostName(8) {
		t.Errorf("the deletion is %v", remove.GoString())
	}
	if add.Class != dnsmessage.ClassINET || add.TTL != zoneTTL || add.Type != dnsmessage.TypeA {
		t.Errorf("the addition is %v", add.GoString())
	}
}

func answer(t testing.TB, header dnsmessage.Header, withSOA bool) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: header, Questions: []dnsmessage.Question{{Name: zoneName, Type: dnsmessage.TypeSOA, Class: dnsmessage.ClassINET}}}
	if withSOA {
		m.Answers = []dnsmessage.Resource{
			{Header: dnsmessage.ResourceHeader{Name: zoneName, Class: dnsmessage.ClassINET}, Body: &dnsmessage.AResource{}},
			{Header: dnsmessage.ResourceHeader{Name: zoneName, Class: dnsmessage.ClassINET}, Body: &dnsmessage.SOAResource{NS: zoneName, MBox: zoneName, Serial: 42}},
		}
	}
	data, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseSerial(t *testing.T) {
	good := dnsmessage.Header{Response: true}
	for _, test := range []struct {
		answer []byte
		serial uint32
		ok     bool
		err    bool
	}{
		{answer(t, good, true), 42, true, false},
		{answer(t, good, false), 0, false, false},
		{answer(t, dnsmessage.Header{Response: true, RCode: dnsmessage.RCodeServerFailure}, true), 0, false, false},
		{answer(t, dnsmessage.Header{}, true), 0, false, false},
		{answer(t, good, true)[:60], 0, false, true},
		{nil, 0, false, true},
	} {
		serial, ok, err := parseSerial(test.answer)
		if serial != test.serial || ok != test.ok || (err != nil) != test.err {
			t.Errorf("%x: %d, %v, %v", test.answer, serial, ok, err)
		}
	}
}

func FuzzParseSerial(f *testing.F) {
	f.Add(answer(f, dnsmessage.Header{Response: true}, true))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if serial, ok, err := parseSerial(data); serial != 0 && !ok || ok && err != nil {
			t.Errorf("%d, %v, %v", serial, ok, err)
		}
	})
}

func TestParseTransfers(t *testing.T) {
	const log = `2026-11-21T02:31:05+0000 info: [zone.test.] AXFR, incoming, remote 10.10.10.10@53 TCP, started
2026-11-21T02:31:15+0000 info: [zone.test.] AXFR, incoming, remote 10.10.10.10@53 TCP, finished, remote serial 2, 9.87 seconds, 2070 messages, 33801477 bytes
2026-11-21T02:31:16+0000 info: [zone.test.] AXFR, outgoing, remote 10.10.10.10@53 TCP, finished, 0.05 seconds, 1 messages, 77 bytes
2026-11-21T02:31:17+0000 info: [zone.test.] IXFR, incoming, remote 10.20.20.20@6000 TCP, finished, remote serial 3, 0.31 seconds, 2 messages, 31234 bytes
2026-11-21T02:31:18+0000 info: [zone.test.] refresh, remote 10.10.10.10@53, remote serial 3, zone is up-to-date
`
	got := parseTransfers(log)
	want := []incoming{{"AXFR", 9870 * time.Millisecond, 33801477}, {"IXFR", 310 * time.Millisecond, 31234}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFirstDifference(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "zone")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, test := range []struct{ a, b, want string }{
		{";; at 1\na A 1\nb A 2\n", ";; at 2\na A 1\nb A 2\n;; end\n", ""},
		{"a A 1\nb A 2\n", "a A 1\nb A 3\n", `record 2 is "b A 2", the other's "b A 3"`},
		{"a A 1\nb A 2\n", "a A 1\n", `the other lacks "b A 2"`},
		{"a A 1\n", "a A 1\nb A 2\n", `the other has "b A 2" too`},
		{"", "", "there are no records"},
	} {
		got, err := firstDifference(file(test.a), file(test.b))
		if err != nil || got != test.want {
			t.Errorf("%q and %q: %q, %v, want %q", test.a, test.b, got, err, test.want)
		}
	}
	if _, err := firstDifference(file("a"), "/no/such/file"); err == nil {
		t.Error("a file that there is not is compared")
	}
}

func quickZone() Options {
	z := Options{Conditions: lab.LossyConditions(), Names: 300, Changes: 2, Patience: 2 * time.Minute, Algorithms: []string{"cubic"}, Repeat: 1}
	z.Conditions.RTT, z.Conditions.Loss = 20*time.Millisecond, link.Loss{Probability: 0.01}
	return z
}

// slow makes the path too slow for the zone.
func slow(z *Options) { z.Conditions.RateBps, z.Patience, z.Changes = 400e3, time.Second, 1 }

// Real name servers: the zone arrives whole, by a full and by incremental
// transfers; and with a path that is too slow, only what changes does.
func TestTransfersBetweenServers(t *testing.T) {
	nettest.RequireProgram(t, "knotd", "knot")
	linktest.PrivateRun(t)
	nettest.CheckLeaks(t)
	z := quickZone()
	z.Cases = []string{"direct-cubic"}
	result, err := z.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := result.Cases[0]
	if !c.AXFRFinished || !c.Identical || c.IXFRUnfinished != 0 || c.IXFRFull != 0 || c.IXFRSecondsP50 == nil || *c.IXFRSecondsMax < *c.IXFRSecondsP50 {
		t.Fatalf("the zone did not arrive whole, by one full transfer and incremental ones: %+v", c)
	}
	if size := result.Zone.TransferBytes; size < 300*200 || size > 300*500 || c.IXFRBytes < 10_000 || c.IXFRBytes > size {
		t.Errorf("%d bytes in a full transfer, %d in an incremental one", size, c.IXFRBytes)
	}
	if _, err := json.Marshal(result); err != nil {
		t.Error(err)
	}

	slow(&z)
	if result, err = z.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = result.Cases[0]
	if c.AXFRFinished || c.AXFRSeconds != nil || c.AXFRBps > 400e3 {
		t.Errorf("100 kB over 400 kb/s are there after a second: %+v", c)
	}
}

func TestCheck(t *testing.T) {
	if err := quickZone().Check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Options){
		`no case "socat": it has direct-cubic, relay`: func(z *Options) { z.Cases = []string{"socat"} },
		"0 names":           func(z *Options) { z.Names = 0 },
		"-1 changes":        func(z *Options) { z.Changes = -1 },
		"0 runs":            func(z *Options) { z.Repeat = 0 },
		"patience of 1ms":   func(z *Options) { z.Patience = time.Millisecond },
		"no rate":           func(z *Options) { z.Conditions.RateBps = 0 },
		"Probability is 33": func(z *Options) { z.Conditions.Loss.Probability = 33 },
	} {
		z := quickZone()
		change(&z)
		if err := z.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestSummarize(t *testing.T) {
	done := run{axfrSeconds: 6, axfrWire: 5, axfrBps: 8e7, axfrBytes: 50e6, ixfrSeconds: []float64{1, 3}, ixfrBytes: []int64{30e3, 40e3}, identical: true}
	faster := done
	faster.axfrSeconds, faster.ixfrSeconds = 4, []float64{2}
	slow := run{axfrBps: 8e4, ixfrSeconds: []float64{5}, ixfrUnfinished: 3, identical: true}
	c := summarize(way{name: "x"}, []run{done, faster}, 50e6)
	if !c.AXFRFinished || *c.AXFRSeconds != 5 || *c.AXFRMinSeconds != 4 || *c.AXFRMaxSeconds != 6 || *c.IXFRSecondsP50 != 2 || *c.IXFRSecondsMax != 3 || !c.Identical || c.AXFRSecondsTotal != nil {
		t.Errorf("got %+v", c)
	}
	c = summarize(way{name: "x"}, []run{slow}, 50e6)
	if c.AXFRFinished || c.AXFRSeconds != nil || *c.AXFRSecondsTotal != 5000 || c.IXFRUnfinished != 3 {
		t.Errorf("unfinished: %+v", c)
	}
	slow.identical = false
	if c = summarize(way{}, []run{done, slow}, 50e6); c.Identical || c.AXFRFinished {
		t.Errorf("with one run that differs: %+v", c)
	}
}
