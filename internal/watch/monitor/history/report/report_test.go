package report

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/units"
)

// TestTextsFitTheScreen holds that no line of what people read has more than
// 80 columns, whatever is in the records.
func TestTextsFitTheScreen(t *testing.T) {
	maker := synthetic.NewMaker(3)
	now := time.Now()
	var records []monitor.Record
	for i := range 200 {
		r := maker.Record(now.Add(-time.Duration(i) * time.Hour))
		r.ID = int64(9_999_900 + i)
		if i%3 == 0 {
			r.Tunnel = strings.Repeat("long-name-", 6)
		}
		records = append(records, r)
	}
	var out bytes.Buffer
	list := List{Query: history.Query{Limit: 200, Order: history.Slowest}, Extent: history.Extent{Records: 1_000_000}, Now: now}
	WriteList(&out, records, list)
	list.OfRelays = true
	WriteList(&out, records, list)
	for i := range records {
		records[i].Relay, records[i].ID = fmt.Sprintf("a-relay-with-a-long-name-%d.site-%d.example.net", i%50, i%7), records[i].ID*10
	}
	WriteList(&out, records, list)
	for i := range records {
		records[i].Hop = ""
		WriteRecord(&out, &records[i])
	}
	leg := flow.LegRecord{Side: "wan", CongestionControl: "longhaul", RTT: units.Seconds(123456 * time.Microsecond), MinRTT: units.Seconds(100123 * time.Microsecond), BytesSent: 345e9, BytesRetransmitted: 1e5}
	WriteRecord(&out, &monitor.Record{EndedBy: "client", Error: strings.Repeat("it was reset ", 12), Record: flow.Record{Reason: "client-reset", ClientLeg: leg, TargetLeg: leg}})
	var c history.Comparison
	for i := range 30 {
		c.Before.TransferTime.Bins = append(c.Before.TransferTime.Bins, history.Bin{From: float64(i), To: float64(i + 1), Count: int64(i)})
		c.Before.TransferTime.Count += int64(i)
	}
	c.Before.Flows, c.Before.Causes = 10, []history.CauseCount{{Cause: "receiver-window", Flows: 3}}
	c.Before.Goodput = history.Distribution{Count: 1, P50: 1e9, P90: 9.99e11, P10: 1}
	c.After = c.Before
	c.After.Goodput.P50 = 123e9
	c.After.Approximate = true
	chart := history.Chart{}
	for i := range 121 {
		chart.Points = append(chart.Points, history.Point{Transfers: int64(i % 3), TransferTimeMedian: float64(i) - 1})
	}
	WriteComparison(&out, c, [2]history.Chart{chart, {}})
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"123 times as fast", "from hourly summaries", "MEDIAN TIME", "<.1% retransmitted\n", "reset it\n             was reset"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not there:\n%s", want, out.String())
		}
	}
}

func TestChangeText(t *testing.T) {
	for _, tt := range []struct {
		ratio float64
		want  string
	}{{2, "2 times as fast"}, {0.1, "10 times as slow"}, {1 / 1520., "1520 times as slow"}, {1.1, "10.0 % faster"}, {1 / 1.25, "25.0 % slower"}, {1, "no change"}, {math.Inf(1), ""}, {0, ""}} {
		if got := changeText(tt.ratio); got != tt.want {
			t.Errorf("%v is %q, want %q", tt.ratio, got, tt.want)
		}
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	r := monitor.Record{Record: flow.Record{ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}}
	var table, csv, all bytes.Buffer
	WriteList(&table, []monitor.Record{r}, List{Now: time.Now()})
	if !strings.HasSuffix(strings.TrimSpace(table.String()), "0     -    - -") {
		t.Errorf("unknown figures are not dashes:\n%s", table.String())
	}
	c := NewCSV(&csv)
	c.Write(&r)
	if err := c.Flush(); err != nil || !strings.Contains(csv.String(), ",,,,,,,") {
		t.Errorf("unknown figures are not empty, %v:\n%s", err, csv.String())
	}
	WriteRecord(&all, &r)
	if text := all.String(); strings.Contains(text, "leg") || strings.Contains(text, "goodput") || strings.Contains(text, fmt.Sprint(-1)) {
		t.Error(text)
	}
}

func TestRecordHasTheStepOfItsCourse(t *testing.T) {
	r := monitor.Record{
		Record:  flow.Record{Elapsed: units.Seconds(time.Minute), ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()},
		Goodput: monitor.Series{Step: units.Seconds(4 * time.Second), UpBps: []float32{1e6, 2e6}, DownBps: []float32{0, 0}},
	}
	var b bytes.Buffer
	WriteRecord(&b, &r)
	if !strings.Contains(b.String(), "4s a column") {
		t.Errorf("the record does not name its step:\n%s", b.String())
	}
}

// A record shows its flow's name, and the relays; one of an older release leaves them out.
func TestNamesOfRecords(t *testing.T) {
	r := monitor.Record{ID: 7, Relay: "relay-a", Site: "site-b", Record: flow.Record{
		Tunnel: "files", Name: flow.Name{0x5f, 0x3a, 15: 0xff}, Peer: "site-b/b1", ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg(),
	}}
	const begin = `record       7
name         5f3a0000-0000-0000-0000-0000000000ff
relay        relay-a
site         site-b
peer         site-b/b1
tunnel       files
`
	var text, csv bytes.Buffer
	WriteRecord(&text, &r)
	if !strings.HasPrefix(text.String(), begin) {
		t.Errorf("got:\n%s\nwant:\n%s", &text, begin)
	}
	c := NewCSV(&csv)
	c.Write(&r)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(csv.String(), "\n")
	if !strings.HasSuffix(lines[0], ",name,relay,site,peer,relay_site") || !strings.HasSuffix(lines[1], ",5f3a0000-0000-0000-0000-0000000000ff,relay-a,site-b,site-b/b1,") {
		t.Errorf("the CSV has\n%s", &csv)
	}
	r.Name, r.Relay, r.Site, r.Peer = flow.Name{}, "", "", ""
	text.Reset()
	WriteRecord(&text, &r)
	if !strings.HasPrefix(text.String(), "record       7\ntunnel       files\n") {
		t.Errorf("an older record has\n%s", &text)
	}
}

// What a database has of a relay and of a truncated client is shown as such, also where a record has
// no client, and two relays of hosts of one name are told apart.
func TestRecordsOfManyRelays(t *testing.T) {
	records := []monitor.Record{{Relay: "gw.example.net", RelaySite: "site-a"}, {Relay: "gw.example.net", RelaySite: "site-b"}, {Relay: "b@gw.example.net", RelaySite: "gw.example.net"}}
	clients := []string{"10.1.2.0:0", "[2001:db8:1::]:0", ""}
	want := [][3]string{{"site-a/gw", "10.1.2.0/24", "site-a/gw.example.net"}, {"site-b/gw", "2001:db8:1::/48", "site-b/gw.example.net"}, {"b@gw", "-", "b@gw.example.net"}}
	for i := range records {
		if clients[i] != "" {
			records[i].Client.AddrPort = netip.MustParseAddrPort(clients[i])
		}
	}
	var list bytes.Buffer
	WriteList(&list, records, List{Now: time.Now(), OfRelays: true})
	lines := strings.Split(list.String(), "\n")
	for i := range records {
		if f := strings.Fields(lines[i+1]); f[3] != want[i][0] || f[4] != want[i][1] {
			t.Errorf("the list has %q, want %q", f, want[i])
		}
		var text, table bytes.Buffer
		WriteRecord(&text, &records[i])
		if !strings.Contains(text.String(), "relay        "+want[i][2]+"\n") || strings.Contains(text.String(), "client       "+want[i][1]) != (clients[i] != "") {
			t.Errorf("the record is\n%s", &text)
		}
		c := NewCSV(&table)
		c.Write(&records[i])
		if err := c.Flush(); err != nil || !strings.HasSuffix(strings.TrimSpace(table.String()), ","+records[i].RelaySite) || strings.Contains(table.String(), ":0,") {
			t.Errorf("%v, the CSV is\n%s", err, &table)
		}
	}
}

// A flow that a pair resumed shows how often and how long it waited; other flows,
// and periods without any, show nothing of pairs.
func TestResumedFlows(t *testing.T) {
	plain := monitor.Record{Record: flow.Record{Tunnel: "files", ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}}
	resumed := plain
	resumed.Resumes, resumed.Outage = 3, units.Seconds(2250*time.Millisecond)
	texts := func(r *monitor.Record) (record, line string) {
		var all, csv bytes.Buffer
		WriteRecord(&all, r)
		c := NewCSV(&csv)
		c.Write(r)
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(csv.String()), "\n")
		return all.String(), lines[len(lines)-1]
	}
	if record, line := texts(&resumed); !strings.Contains(record, "resumed      3 times, waited 2.2s in outages between the relays\n") || !strings.HasSuffix(line, ",3,2.25,,,,,") {
		t.Errorf("%s\n%s", record, line)
	}
	if record, line := texts(&plain); strings.Contains(record, "resumed") || !strings.HasSuffix(line, ",,,,,,,") {
		t.Errorf("%s\n%s", record, line)
	}
	compared := func(r *history.Resumed) string {
		var b bytes.Buffer
		WriteComparison(&b, history.Comparison{After: history.Summary{Resumed: r}}, [2]history.Chart{})
		return b.String()
	}
	if text := compared(nil); strings.Contains(text, "resume") {
		t.Error(text)
	}
	const want = `flows resumed        0                  4
resumes              0                  9
outage, longest      -                  20s
`
	if text := compared(&history.Resumed{Flows: 4, Resumes: 9, Longest: units.Seconds(20 * time.Second)}); !strings.Contains(text, want) {
		t.Error(text)
	}
}
