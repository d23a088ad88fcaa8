package pcap

import (
	"bytes"
	"testing"
)

// TestLeftOutOnce counts a connection without a place once, however often its SYN comes.
func TestLeftOutOnce(t *testing.T) {
	for name, test := range map[string]struct {
		isn  uint32 // of the second SYN, less the first
		want int64
	}{"sent again": {0, 1}, "another connection": {7, 2}} {
		c := newCapture(t)
		for port := range uint16(4) {
			c.port = 40000 + port
			c.add(seg{ms: float64(port), from: client, flags: "S"})
		}
		for i := range 5 {
			c.add(seg{ms: float64(1000 + 1000*i), from: client, flags: "S", seq: test.isn})
		}
		got, err := Read(bytes.NewReader(c.file(128)), Options{MaxConnections: 3})
		if err != nil || got.LeftOut.Connections != test.want || got.LeftOut.Packets != 6 {
			t.Errorf("%s: %v, %d connections with %d packets are left out", name, err, got.LeftOut.Connections, got.LeftOut.Packets)
		}
	}
}

// TestPruneSeldom looks at all connections of a full table seldom, if few of them have ended.
func TestPruneSeldom(t *testing.T) {
	for ended, want := range map[int]bool{0: true, 1: true, 4: true, 5: false, 20: false} {
		table := &table{options: Options{MaxConnections: 64}, open: map[way]*connection{}, lone: map[key]*connection{}, room: maxAllSegments}
		for range ended {
			table.ended = append(table.ended, newConnection(key{addresses[0][client], addresses[0][server]}, 0, &table.room))
		}
		table.prune(1)
		if later := table.pruneAt == 1+pruneRetry; later != want || len(table.ended) != max(0, ended-16) {
			t.Errorf("%d ended: %d are left, the next look is at %d", ended, len(table.ended), table.pruneAt)
		}
	}
}
