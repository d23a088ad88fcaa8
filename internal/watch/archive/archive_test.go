package archive_test

import (
	"net/netip"
	"strings"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/remedy"
)

func TestColumnsHaveOneNameEach(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range archive.Columns() {
		if seen[c.Name] {
			t.Errorf("two columns %q", c.Name)
		}
		seen[c.Name] = true
	}
}

// A record of which nothing is known has a value for the key alone.
func TestUnknownIsNil(t *testing.T) {
	row := archive.Row{Record: monitor.Record{Record: flow.Record{ClientLeg: flow.UnknownLeg(), TargetLeg: flow.UnknownLeg()}}}
	known := map[string]bool{"relay": true, "epoch": true, "id": true, "started": true, "ended": true, "elapsed_us": true,
		"relay_site": true, "tunnel": true, "bytes_up": true, "bytes_down": true}
	for _, c := range archive.Columns() {
		if v := c.Value(&row); (v != nil) != known[c.Name] {
			t.Errorf("%s is %v", c.Name, v)
		}
	}
}

func TestClientsAreLeftOut(t *testing.T) {
	for _, test := range []struct {
		client  string
		clients archive.Clients
		prefix  string
		port    uint16
	}{
		{"10.1.2.3:40000", "", "10.1.2.3/32", 40000},
		{"10.1.2.3:40000", archive.WholeClients, "10.1.2.3/32", 40000},
		{"10.1.2.3:40000", archive.TruncatedClients, "10.1.2.0/24", 0},
		{"[::ffff:10.1.2.3]:40000", archive.TruncatedClients, "10.1.2.0/24", 0},
		{"[2001:db8:1:2::3]:40000", archive.TruncatedClients, "2001:db8:1::/48", 0},
		{"[fe80::1%eth0]:40000", archive.WholeClients, "fe80::1/128", 40000},
		{"10.1.2.3:40000", archive.NoClients, "invalid Prefix", 0},
	} {
		row := archive.Row{Clients: test.clients}
		row.Client = flow.Address{AddrPort: netip.MustParseAddrPort(test.client)}
		if p, port := row.ClientPrefix().String(), row.ClientPort(); p != test.prefix || port != test.port {
			t.Errorf("%s, %q: %s and port %d, want %s and %d", test.client, test.clients, p, port, test.prefix, test.port)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for _, test := range []struct {
		to   string
		kind archive.Kind
		is   string // empty: to
	}{
		{"postgres://longhaul@db.example.net/longhaul?sslmode=verify-full", archive.Postgres, ""},
		{"postgresql:///longhaul?host=/run/postgresql", archive.Postgres, ""},
		{"https://ch.example.net:8443/?query=INSERT+INTO+flows+FORMAT+JSONEachRow", archive.JSONRows, ""},
		{"ipfix://10.0.0.9:4740", archive.IPFIX, ""},
		{"ipfix://10.0.0.9", archive.IPFIX, "ipfix://10.0.0.9:4739"},
		{"ipfix+udp://[2001:db8::9]", archive.IPFIX, "ipfix+udp://[2001:db8::9]:4739"},
	} {
		if test.is == "" {
			test.is = test.to
		}
		if got, err := archive.ParseTarget(test.to); err != nil || got.Kind != test.kind || got.To != test.is {
			t.Errorf("%s: %+v, %v", test.to, got, err)
		}
	}
	for _, bad := range []string{
		"", "db.example.net", "kafka://k", "postgres://u:secret@db/x", "postgres://u@db/x?password=secret",
		"https://u:secret@ch/", "https://ch/?password=secret", "https:///x", "ipfix://c:4739/x", "ipfix://u@c", "postgres://u:sec%zzret@h/",
	} {
		_, err := archive.ParseTarget(bad)
		if err == nil || remedy.Of(err) == "" {
			t.Errorf("%s: %v", bad, err)
			continue
		}
		if s := remedy.Line(err); len(s) > 200 || strings.Contains(s, "secret") {
			t.Errorf("%s: %s", bad, s)
		}
	}
}
