package mss

import (
	"testing"
	"time"

	"longhaul/test/nettest"
)

// BenchmarkProgram has the kernel time the program: what every packet costs,
// and what a SYN does, with the rule that matches first or last.
func BenchmarkProgram(b *testing.B) {
	nettest.RequireRoot(b)
	one := []Rule{{Action: Raise, MSS: 1460}}
	var full []Rule
	for i := range maxRules - 1 {
		full = append(full, Rule{To: prefix("2001:db8::/32"), Port: uint16(10000 + i), Action: Raise, MSS: 1460})
	}
	full = append(full, one...)
	usual := options(mssOption(460), sackOK, timestamps, nop, scale)
	for _, c := range []struct {
		name  string
		rules []Rule
		syn
	}{
		{"data", one, syn{noSYN: true, options: options(nop, nop, timestamps), payload: 1448}},
		{"data, IPv6", one, syn{version: 6, noSYN: true, options: options(nop, nop, timestamps), payload: 1428}},
		{"data, tagged", one, syn{vlans: []uint16{7}, noSYN: true, payload: 1448}},
		{"SYN", one, syn{options: usual}},
		{"SYN, IPv6", one, syn{version: 6, options: usual}},
		{"SYN, 64 rules", full, syn{options: usual}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.linkHeader = ethernetHeader
			p, packet := testProgram(b, ethernetHeader, c.rules...), c.build(b)
			// A packet that is run again has its new MSS already, so a SYN is
			// run once, and what it takes to read the clock counts as well.
			repeat := 1
			if c.noSYN {
				repeat = 1000
			}
			var total time.Duration
			runs := 0
			for b.Loop() {
				_, each, err := p.program.Benchmark(packet, repeat, func() {})
				must(b, err)
				total += each
				runs++
			}
			b.ReportMetric(float64(total.Nanoseconds())/float64(runs), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}
