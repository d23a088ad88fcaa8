package ipfix

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

var update = flag.Bool("update", false, "write the golden files")

// exported is when the messages of tests are made.
var exported = time.Unix(1_790_000_000, 0)

// makeRows are the same for the same seed, with what is unknown or cut in some.
func makeRows(seed uint64, n int) []archive.Row {
	maker, r := synthetic.NewMaker(seed), rand.New(rand.NewPCG(seed, 3))
	all := make([]archive.Row, n)
	for i := range all {
		row := archive.Row{Record: maker.Record(exported.Add(time.Duration(i) * time.Second)), Epoch: 77, OwnSite: "site-a"}
		row.ID = int64(i + 1)
		switch r.IntN(10) {
		case 0:
			row.ClientLeg, row.TargetLeg = flow.UnknownLeg(), flow.UnknownLeg()
			row.Target, row.BytesUp, row.BytesDown = flow.Address{}, 0, 0
		case 1:
			row.TargetLeg = flow.UnknownLeg()
		case 2:
			row.Clients = archive.TruncatedClients
		case 3:
			row.Clients = archive.NoClients
		case 4:
			row.Name = flow.Name{}
		}
		all[i] = row
	}
	return all
}

// encode is the messages of rows in a new session.
func encode(t testing.TB, rows []archive.Row, maxLen int, biflow bool) (messages [][]byte) {
	t.Helper()
	e := newEncoder(rows[0].Relay, maxLen, biflow)
	send := func(b []byte) error {
		messages = append(messages, bytes.Clone(b))
		return nil
	}
	nettest.Must(t, e.types(exported, send))
	nettest.Must(t, e.templates(exported, send))
	nettest.Must(t, e.rows(rows, func() time.Time { return exported }, send))
	return messages
}

// decode is the data records of flows in messages of one session, by their keys.
func decode(t testing.TB, messages [][]byte) map[key]decoded {
	t.Helper()
	all := map[key]decoded{}
	d := newDecoder()
	for _, m := range messages {
		nettest.Must(t, d.message(m, func(r decoded) {
			if r.template == typesTemplate {
				return
			}
			if _, again := all[r.key()]; again {
				t.Errorf("%v twice", r.key())
			}
			all[r.key()] = r
		}))
	}
	return all
}

// holds compares a record with the row it was made of.
func (r decoded) holds(row *archive.Row) error {
	numbers := func(enterprise uint32, id uint16, name string, want int64) error {
		if got, has := r.number(enterprise, id); !has && want >= 0 || has && (want < 0 || got != uint64(want)) {
			return fmt.Errorf("%s of %v is %d (%v), want %d", name, r.key(), got, has, want)
		}
		return nil
	}
	first, second := row.BytesUp, row.BytesDown
	client, target := row.ClientPrefix(), netip.Prefix{}
	if row.Target.IsValid() {
		target = netip.PrefixFrom(row.Target.Addr(), row.Target.Addr().BitLen())
	}
	source, destination, sourcePort, destinationPort := client, target, row.ClientPort(), row.Target.Port()
	clientRetransmitted, targetRetransmitted := row.ClientLeg.BytesRetransmitted, row.TargetLeg.BytesRetransmitted
	switch r.text(9) {
	case "up":
		second, clientRetransmitted = -1, -1
	case "down":
		first, second, targetRetransmitted = second, -1, -1
		source, destination, sourcePort, destinationPort = destination, source, destinationPort, sourcePort
	}
	rtt := func(leg flow.LegRecord, retransmitted int64) int64 {
		if retransmitted < 0 {
			return -1
		}
		return leg.MinRTT.Duration().Microseconds()
	}
	for _, err := range []error{
		numbers(0, 152, "start", row.Start.UnixMilli()), numbers(0, 153, "end", row.End.UnixMilli()),
		numbers(0, 7, "source port", int64(sourcePort)), numbers(0, 11, "destination port", int64(destinationPort)),
		numbers(0, 4, "protocol", 6), numbers(0, 1, "octets", first), numbers(reverseEnterprise, 1, "reverse octets", second),
		numbers(enterprise, 10, "client RTT", rtt(row.ClientLeg, clientRetransmitted)), numbers(enterprise, 12, "target RTT", rtt(row.TargetLeg, targetRetransmitted)),
		numbers(enterprise, 11, "client retransmitted", clientRetransmitted), numbers(enterprise, 13, "target retransmitted", targetRetransmitted),
		r.address("source", 8, 9, 27, 29, source), r.address("destination", 12, 13, 28, 30, destination),
	} {
		if err != nil {
			return err
		}
	}
	for id, want := range map[uint16]string{3: row.Relay, 4: row.OwnSite, 5: row.Tunnel, 6: row.Site, 7: string(row.Cause), 8: string(row.Reason)} {
		most := maxWord
		if id == 3 {
			most = maxRelay
		}
		if got := r.text(id); got != want && (utf8.ValidString(want) && len(want) <= most || !utf8.ValidString(got) || len(got) > most) {
			return fmt.Errorf("text %d is %q, want %q", id, got, want)
		}
	}
	if name := r.values[specifier{enterprise: enterprise, id: 2}]; !bytes.Equal(name, row.Name[:]) {
		return fmt.Errorf("name %x, want %x", name, row.Name)
	}
	return nil
}

// address compares one, of either family; mapped ones are IPv4.
func (r decoded) address(name string, id4, bits4, id6, bits6 uint16, want netip.Prefix) error {
	b, four := r.values[specifier{id: id4}]
	bits, _ := r.number(0, bits4)
	if !four {
		b = r.values[specifier{id: id6}]
		bits, _ = r.number(0, bits6)
	}
	addr, _ := netip.AddrFromSlice(b)
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	got := netip.PrefixFrom(addr, int(bits))
	if want.IsValid() && got != want || !want.IsValid() && (bits != 0 || !addr.IsUnspecified()) {
		return fmt.Errorf("%s is %v, want %v", name, got, want)
	}
	return nil
}

// keys are those of the records that a row becomes.
func keys(row *archive.Row, biflow bool) []key {
	k := key{relay: row.Relay, epoch: uint64(row.Epoch), id: uint64(row.ID)}
	if biflow {
		return []key{k}
	}
	up, down := k, k
	up.direction, down.direction = "up", "down"
	return []key{up, down}
}

// same fails unless the records are those of the rows, and no others.
func same(t testing.TB, records map[key]decoded, rows []archive.Row, biflow bool) {
	t.Helper()
	n := 0
	for i := range rows {
		for _, k := range keys(&rows[i], biflow) {
			n++
			r, has := records[k]
			if !has {
				t.Fatalf("no record %v", k)
			}
			if err := r.holds(&rows[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(records) != n {
		t.Errorf("%d records, want %d", len(records), n)
	}
}

func TestRecordsHaveWhatRowsHave(t *testing.T) {
	for _, biflow := range []bool{true, false} {
		for _, maxLen := range []int{maxUDP, maxTCP} {
			rows := makeRows(1, 5000)
			messages := encode(t, rows, maxLen, biflow)
			for _, m := range messages {
				if len(m) > maxLen {
					t.Errorf("a message of %d octets, at most %d may be", len(m), maxLen)
				}
			}
			same(t, decode(t, messages), rows, biflow)
		}
	}
}

// Records with the longest texts fit into a message over UDP, and so do the templates.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("ä", 300)
	rows := makeRows(2, 50)
	for i := range rows {
		r := &rows[i]
		r.Relay, r.OwnSite, r.Tunnel, r.Site = "r"+long, long, long, long
		r.Cause, r.Reason = "c\xff", flow.EndReason(long)
	}
	for _, biflow := range []bool{true, false} {
		messages := encode(t, rows, maxUDP, biflow)
		n := 0
		d := newDecoder()
		for _, m := range messages {
			if len(m) > maxUDP {
				t.Errorf("a message of %d octets", len(m))
			}
			nettest.Must(t, d.message(m, func(r decoded) {
				if r.template == typesTemplate {
					return
				}
				n++
				if got := r.text(3); got != "r"+strings.Repeat("ä", 126) {
					t.Errorf("relay is %q", got)
				}
				if got := r.text(7); got != "c?" {
					t.Errorf("cause is %q", got)
				}
			}))
		}
		if want := len(rows) * len(keys(&rows[0], biflow)); n != want {
			t.Errorf("%d records, want %d", n, want)
		}
	}
}

// What a collector keeps must not change unnoticed: IDs, order and sizes of elements, and the domain.
func TestGoldenMessages(t *testing.T) {
	for _, biflow := range []bool{true, false} {
		name := filepath.Join("testdata", fmt.Sprintf("biflow-%v.hex", biflow))
		var b strings.Builder
		for _, m := range encode(t, makeRows(3, 6), maxUDP, biflow) {
			b.WriteString(hex.Dump(m) + "\n")
		}
		if *update {
			nettest.Must(t, os.WriteFile(name, []byte(b.String()), 0o644))
		}
		want, err := os.ReadFile(name)
		nettest.Must(t, err)
		if b.String() != string(want) {
			t.Errorf("other messages than in %s; is that meant, for the collectors that have the old ones? go test ./internal/watch/archive/ipfix -run Golden -update", name)
		}
	}
}

// Private elements have the names of the columns, but for the direction, which only IPFIX has.
func TestNamesOfPrivateElements(t *testing.T) {
	columns := map[string]bool{"direction": true}
	for _, c := range archive.Columns() {
		columns[c.Name] = true
	}
	for i, p := range private {
		if !columns[p.name] {
			t.Errorf("no column %q", p.name)
		}
		if int(p.id) != i+1 {
			t.Errorf("%s is %d, want %d", p.name, p.id, i+1)
		}
	}
}

func TestEndReasons(t *testing.T) {
	counts := map[byte]int{}
	for _, r := range flow.EndReasons {
		counts[endReason(r)]++
	}
	if endReason(flow.EndClean) != 3 || endReason(flow.EndIdle) != 1 || endReason(flow.EndDrain) != 4 || endReason(flow.EndShed) != 5 {
		t.Errorf("%v", counts)
	}
}

// FuzzRows encodes a row of any texts and numbers and reads it again.
func FuzzRows(f *testing.F) {
	f.Add("relay-a", "to-b", "receiver-window", []byte{10, 1, 2, 3}, []byte{10, 2, 2, 3}, int64(5), int64(7), int64(-1), true)
	f.Fuzz(func(t *testing.T, relay, tunnel, cause string, client, target []byte, up, down, again int64, biflow bool) {
		row := makeRows(4, 1)[0]
		row.Relay, row.Tunnel, row.Cause = relay, tunnel, "x"
		row.Site = cause
		row.BytesUp, row.BytesDown = max(up, 0), max(down, 0)
		row.ClientLeg.BytesRetransmitted, row.ClientLeg.MinRTT = again, units.Seconds(60*time.Millisecond)
		c, _ := netip.AddrFromSlice(client)
		row.Client = flow.Address{AddrPort: netip.AddrPortFrom(c.Unmap(), 1)}
		a, _ := netip.AddrFromSlice(target)
		row.Target = flow.Address{AddrPort: netip.AddrPortFrom(a.Unmap(), 2)}
		rows := []archive.Row{row}
		records := decode(t, encode(t, rows, maxUDP, biflow))
		if len(records) != len(keys(&row, biflow)) {
			t.Fatalf("%d records", len(records))
		}
		for _, r := range records {
			if err := r.holds(&row); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzDecoder: the tests' own reader stands any octets.
func FuzzDecoder(f *testing.F) {
	for _, m := range encode(f, makeRows(5, 3), maxUDP, true) {
		f.Add(m)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { _ = newDecoder().message(b, func(decoded) {}) })
}

// A record costs at most a microsecond.
func BenchmarkRecord(b *testing.B) {
	for _, biflow := range []bool{true, false} {
		b.Run(fmt.Sprintf("biflow=%v", biflow), func(b *testing.B) {
			rows := makeRows(1, 5000)
			e := newEncoder(rows[0].Relay, maxTCP, biflow)
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				_ = e.rows(rows, time.Now, func([]byte) error { return nil })
			}
			records := float64(b.N * len(rows) * len(keys(&rows[0], biflow)))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/records, "ns/record")
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/records, "cpu-ns/record") // also on a busy machine
		})
	}
}

func cpuTime(t testing.TB) time.Duration {
	var u unix.Rusage
	nettest.Must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
