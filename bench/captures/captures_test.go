package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// The test binary is the reader too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "--read" {
		main()
		return
	}
	nettest.Main(m)
}

// TestAgree compares the captures of the tree.
func TestAgree(t *testing.T) {
	nettest.RequireProgram(t, "tshark", "tshark")
	captures := t.TempDir()
	files, err := filepath.Glob("../../internal/find/pcap/testdata/*.pcap")
	nettest.Must(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		nettest.Must(t, err)
		nettest.Must(t, os.WriteFile(filepath.Join(captures, filepath.Base(file)), content, 0o600))
	}
	empty := filepath.Join(t.TempDir(), "no capture")
	nettest.Must(t, os.WriteFile(empty, []byte("text\n"), 0o600))
	var out bytes.Buffer
	nettest.Must(t, run(t.Context(), []string{"--longhaul", nettest.Longhaul(t), "--json", captures, captures, empty}, &out, io.Discard))
	var r report
	nettest.Must(t, json.Unmarshal(out.Bytes(), &r))
	if r.Files.Read != len(files)+1 || r.Files.Copies != len(files) || r.Files.TCP != len(files) || r.Causes["refused"] == 0 {
		t.Errorf("%d files: %+v, %v", len(files), r.Files, r.Causes)
	}
	if r.Flows.Compared < len(files) {
		t.Errorf("%+v", r.Flows)
	}
	for _, d := range r.Differ {
		for _, f := range d.Figures {
			// Only the sender knows these apart, and tshark goes by the time since the latest packet.
			if f.Name != "retransmitted" && f.Name != "out_of_order" {
				t.Errorf("%s: %+v", d.File, f)
			}
		}
	}
	if r.Slowest.Value == 0 || r.Largest.Value == 0 {
		t.Errorf("no extremes: %+v, %+v", r.Slowest, r.Largest)
	}
	out.Reset()
	nettest.Must(t, r.print(&out))
	if !strings.Contains(out.String(), "min_rtt_ms") || !strings.Contains(out.String(), "tcp.stream == 0 && ip.src == ") {
		t.Error(out.String())
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(cancelled, []string{"--longhaul", nettest.Longhaul(t), captures}, io.Discard, io.Discard); err == nil {
		t.Error("an interrupted run has no error")
	}
	if err := run(t.Context(), nil, io.Discard, io.Discard); err == nil {
		t.Error("no folder is no error")
	}
}

var (
	client = netip.MustParseAddrPort("192.0.2.1:40000")
	server = netip.MustParseAddrPort("198.51.100.2:80")
)

// line is a line of tshark's, from the fields that are set.
func line(set map[int]string) string {
	f := make([]string, fieldCount)
	for i, v := range map[int]string{fieldStream: "0", fieldTime: "1000.5", fieldFlags: "0x0010", fieldLen: "0", fieldSeq: "1", fieldAck: "1", fieldHeader: "20", fieldScale: "128"} {
		f[i] = v
	}
	for i, v := range set {
		f[i] = v
	}
	return strings.Join(f, "\t") + "\n"
}

// from sets the ends of a packet.
func from(a, b netip.AddrPort, set map[int]string) string {
	set[fieldSrc4], set[fieldSrcPort] = a.Addr().String(), "40000"
	set[fieldDst4], set[fieldDstPort] = b.Addr().String(), "80"
	if a == server {
		set[fieldSrcPort], set[fieldDstPort] = "80", "40000"
	}
	return line(set)
}

// TestCollect adds up a connection whose figures are known.
func TestCollect(t *testing.T) {
	data := func(seq, size string, more ...int) string {
		set := map[int]string{fieldSeq: seq, fieldLen: size}
		for _, i := range more {
			set[i] = "1"
		}
		return from(client, server, set)
	}
	answer := func(ack, window string, more ...int) string {
		set := map[int]string{fieldAck: ack, fieldWindow: window}
		for _, i := range more {
			set[i] = "1"
		}
		return from(server, client, set)
	}
	lines := from(client, server, map[int]string{fieldFlags: "0x0002", fieldSeq: "0", fieldMSS: "1460", fieldHeader: "40"}) +
		from(server, client, map[int]string{fieldFlags: "0x0012", fieldSeq: "0", fieldMSS: "1000", fieldHeader: "40", fieldRTT: "0.05"}) +
		data("1", "1000") +
		answer("1001", "3000") +
		data("1001", "3000") + // a super-packet that fills the window
		data("4001", "500", fieldOutOfOrder) +
		from(client, server, map[int]string{fieldSeq: "1001", fieldLen: "1500", fieldRetransmission: "1", fieldNumber: "7"}) +
		from(server, client, map[int]string{fieldAck: "2501", fieldWindow: "3000", fieldRTT: "0.001", fieldAcked: "7"}) +
		answer("4501", "0", fieldZeroWindow, fieldDSACK) +
		answer("4501", "0", fieldZeroWindow) +
		data("4500", "1", fieldKeepAlive) +
		data("4501", "1", fieldProbe) +
		from(server, client, map[int]string{fieldFlags: "0x0004"}) +
		from(client, server, map[int]string{fieldFlags: "0x0014"})
	got, err := collect(strings.NewReader(lines))
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	d := got[0]
	if d.From != client || d.To != server || !d.Start.Equal(time.Unix(1000, 5e8)) {
		t.Errorf("%+v", d)
	}
	for name, want := range map[string]float64{
		"segments": 7, "bytes": 4500, "delivered": 4500, "retransmitted": 2, "out_of_order": 1, "again_or_late": 3,
		"zero_windows": 1, "window_full": 1, "dsack": 1, "keepalives": 1, "probes": 1, "mss": 1000, "min_rtt_ms": 50,
		"reset_by": resetByReceiver,
	} {
		if got, ok := d.Figures[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if _, err := collect(strings.NewReader("no line of tshark\n")); err == nil {
		t.Error("another format was read")
	}
}

// TestCompare holds two sets of figures against each other.
func TestCompare(t *testing.T) {
	flow := func(start float64, figures map[string]float64) direction {
		return direction{From: client, To: server, Start: time.Unix(0, int64(start*1e9)), Figures: figures}
	}
	for _, test := range []struct {
		name         string
		ours, theirs map[string]float64
		want         []string
	}{
		{"equal", map[string]float64{"bytes": 1e6, "mss": 1448}, map[string]float64{"bytes": 1e6, "mss": 1448}, nil},
		{"within 2 %", map[string]float64{"bytes": 1e6, "segments": 100}, map[string]float64{"bytes": 1.01e6, "segments": 98}, nil},
		{"one more", map[string]float64{"bytes": 1e6, "dsack": 1}, map[string]float64{"bytes": 1e6, "dsack": 0}, nil},
		{"two more", map[string]float64{"bytes": 1e6, "dsack": 2}, map[string]float64{"bytes": 1e6, "dsack": 0}, []string{"dsack"}},
		{"another segment size", map[string]float64{"bytes": 1e6, "mss": 1448}, map[string]float64{"bytes": 1e6, "mss": 1460}, []string{"mss"}},
		{"another end reset", map[string]float64{"bytes": 1e6, "reset_by": 1}, map[string]float64{"bytes": 1e6, "reset_by": 2}, []string{"reset_by"}},
		{"unknown", map[string]float64{"bytes": 1e6}, map[string]float64{"bytes": 1e6, "min_rtt_ms": 10}, nil},
		{"too small", map[string]float64{"bytes": 10, "dsack": 9}, map[string]float64{"bytes": 10}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := report{Figures: make([]agreement, len(compared))}
			r.compare("file", []direction{flow(1, test.ours)}, []direction{flow(1, test.theirs)}, 1e5)
			var differ []string
			for _, d := range r.Differ {
				for _, f := range d.Figures {
					differ = append(differ, f.Name)
					if strings.Contains(f.Filter, "%") {
						t.Errorf("filter %s", f.Filter)
					}
				}
			}
			if !slices.Equal(differ, test.want) {
				t.Errorf("differ: %v, want %v", differ, test.want)
			}
		})
	}
	r := report{Figures: make([]agreement, len(compared))}
	large := map[string]float64{"bytes": 1e6}
	r.compare("file", []direction{flow(100, large), flow(1, large)}, []direction{flow(1, large), flow(50, large), flow(100, large)}, 1e5)
	if r.Flows.Compared != 2 || r.Flows.OnlyTshark != 1 || r.Differ[0].Has.Start.Unix() != 50 {
		t.Errorf("connections of the same ports: %+v, %+v", r.Flows, r.Differ)
	}
}
