package jsonrows

import (
	"bytes"
	"encoding/json"
	"math"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/units"
)

// decoded reads one line as encoding/json does, numbers as they are written.
func decoded(t testing.TB, line []byte) map[string]any {
	t.Helper()
	if n := bytes.Count(line, []byte("\n")); n != 1 || line[len(line)-1] != '\n' {
		t.Fatalf("%d line ends in %q", n, line)
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	if decoder.More() {
		t.Fatalf("more than an object: %q", line)
	}
	return fields
}

// same holds a row's line against what encoding/json makes of its columns.
func same(t testing.TB, row *archive.Row) {
	t.Helper()
	want := map[string]any{}
	for _, c := range archive.Columns() {
		switch v := c.Value(row).(type) {
		case nil:
		case float64:
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				want[c.Name] = v
			}
		case time.Time:
			if v.Year() >= 0 && v.Year() <= 9999 {
				want[c.Name] = v.Format("2006-01-02T15:04:05.000Z")
			}
			want[c.Name+"_ms"] = v.UnixMilli()
		case netip.Prefix:
			want[c.Name] = strings.TrimSuffix(strings.TrimSuffix(v.String(), "/32"), "/128")
			if v.Addr().Is6() && v.Bits() == 32 || v.Addr().Is4() && v.Bits() != 32 {
				want[c.Name] = v.String()
			}
		default:
			want[c.Name] = v
		}
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := decoded(t, appendRow(nil, row))
	for name, v := range decoded(t, append(text, '\n')) {
		if number, is := v.(json.Number); is { // 1e-07 and 1e-7 are the same
			a, err := number.Float64()
			is, isNumber := got[name].(json.Number)
			b, bad := is.Float64()
			if !isNumber || err != nil || bad != nil || a != b {
				t.Errorf("%s is %v, want %v", name, got[name], v)
			}
		} else if got[name] != v {
			t.Errorf("%s is %q, want %q", name, got[name], v)
		}
		delete(got, name)
	}
	for name, v := range got {
		t.Errorf("%s is %v, want none", name, v)
	}
}

func rowsOf(seed uint64, n int) []archive.Row {
	maker := synthetic.NewMaker(seed)
	rows := make([]archive.Row, n)
	at := time.UnixMilli(1767225600123)
	for i := range rows {
		rows[i] = archive.Row{Record: maker.Record(at), Epoch: 9007199254740993, OwnSite: "site-a", Clients: archive.WholeClients}
		rows[i].ID = int64(i + 1)
		at = at.Add(137 * time.Millisecond)
	}
	return rows
}

func TestRows(t *testing.T) {
	for _, row := range rowsOf(1, 500) {
		same(t, &row)
		row.Clients = archive.TruncatedClients
		same(t, &row)
	}
	same(t, &archive.Row{})
	row := archive.Row{Record: monitor.Record{Record: flow.Record{ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}}}
	row.Start = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
	same(t, &row)
	for _, share := range []float64{0, 1e-9, 1e300, math.NaN(), math.Inf(1), 0.1} {
		row.Cause, row.CauseShare = "loss", share
		same(t, &row)
	}
	row.CauseShare = 1
	if text := string(appendRow(nil, &row)); !strings.Contains(text, `"cause_share":1.0,`) && !strings.Contains(text, `"cause_share":1.0}`) {
		t.Errorf("an integer for a share: %s", text)
	}
}

// A row as it is written in the manual.
func TestRowAsText(t *testing.T) {
	row := archive.Row{Record: monitor.Record{Record: flow.Record{ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}}}
	row.Relay, row.Epoch, row.ID, row.OwnSite, row.Tunnel, row.Site = "relay-a", 7, 41, "site-a", `to "b"`, "a\x00\xff\u2028ü"
	row.Start, row.End = time.UnixMilli(1767225600123), time.UnixMilli(1767225601000)
	row.Elapsed, row.BytesUp = units.Seconds(877*time.Millisecond), 5
	row.Client = flow.Address{AddrPort: netip.MustParseAddrPort("10.1.2.3:40000")}
	const want = `{"relay":"relay-a","epoch":7,"id":41,"started":"2026-01-01T00:00:00.123Z","started_ms":1767225600123,` +
		`"ended":"2026-01-01T00:00:01.000Z","ended_ms":1767225601000,"elapsed_us":877000,"relay_site":"site-a","tunnel":"to \"b\"",` +
		`"site":"a\u0000` + "\uFFFD\u2028" + `ü","client":"10.1.2.3","client_port":40000,"bytes_up":5,"bytes_down":0}` + "\n"
	if got := string(appendRow(nil, &row)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := string(appendAction(nil, &row)), `{"create":{"_id":"relay-a-7-41"}}`+"\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func FuzzRow(f *testing.F) {
	f.Add("relay", "tunnel", "error", int64(1), int64(2), uint16(3), 0.5, []byte{10, 1, 2, 3})
	f.Add("\x00\"\\\n\u2028", "\xff\xfe\xed\xa0\x80", strings.Repeat("ü\x80", 5000), int64(-1), int64(math.MaxInt64), uint16(0), math.NaN(), []byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, relay, tunnel, text string, at, number int64, port uint16, share float64, address []byte) {
		row := archive.Row{Epoch: number, OwnSite: text}
		row.Relay, row.Tunnel, row.Error, row.ID, row.Peer = relay, tunnel, text, at, tunnel
		row.Start, row.End = time.UnixMilli(at), time.UnixMilli(number)
		row.BytesUp, row.TargetLeg.BytesSent = number, at
		row.Cause, row.CauseShare, row.Resumes = "loss", share, number
		if addr, ok := netip.AddrFromSlice(address); ok {
			row.Client = flow.Address{AddrPort: netip.AddrPortFrom(addr, port)}
			row.Clients = archive.TruncatedClients
			row.Target = row.Client
			copy(row.Name[:], address)
		}
		same(t, &row)
		decoded(t, appendAction(nil, &row))
	})
}

func BenchmarkEncode(b *testing.B) {
	rows := rowsOf(1, 5000)
	for _, plain := range []bool{true, false} {
		name := "gzip"
		if plain {
			name = "plain"
		}
		b.Run(name, func(b *testing.B) {
			s := &Sink{zip: newGzip(), plain: plain}
			b.ReportAllocs()
			n, begun := 0, cpuTime(b)
			for b.Loop() {
				for rest := rows; len(rest) > 0; n++ {
					done, err := s.encode(rest)
					if err != nil {
						b.Fatal(err)
					}
					rest = rest[done:]
				}
			}
			b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N*len(rows)), "cpu-ns/record")
			b.ReportMetric(float64(s.body.Len())*float64(n/b.N)/float64(len(rows)), "bytes/record")
		})
	}
	b.Run("encoding/json", func(b *testing.B) {
		var out bytes.Buffer
		begun := cpuTime(b)
		for b.Loop() {
			out.Reset()
			encoder := json.NewEncoder(&out)
			for i := range rows {
				fields := map[string]any{}
				for _, c := range archive.Columns() {
					if v := c.Value(&rows[i]); v != nil {
						fields[c.Name] = v
					}
				}
				if err := encoder.Encode(fields); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N*len(rows)), "cpu-ns/record")
	})
}

// cpuTime is the process's, which other programs do not lengthen as they do the time by the clock.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
