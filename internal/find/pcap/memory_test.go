package pcap

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"longhaul/internal/find/doctor"
)

// crowd is a capture file of many connections at the same time: headers of IPv4 with
// timestamps. In each the client and the server send a segment in turn, at equal intervals.
// Those of the first connections are larger.
type crowd struct {
	connections, turns int
	every              time.Duration

	began   bool
	turn, n int
	packet  [16 + 20 + 32]byte
	rest    []byte
}

func (c *crowd) Read(b []byte) (n int, err error) {
	for n < len(b) {
		if len(c.rest) == 0 && !c.next() {
			break
		}
		k := copy(b[n:], c.rest)
		n, c.rest = n+k, c.rest[k:]
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// next makes the next packet.
func (c *crowd) next() bool {
	order := binary.LittleEndian
	if !c.began {
		c.began = true
		for _, n := range []uint32{magicMicroseconds, version2(4), 0, 0, 128, 101} {
			c.rest = order.AppendUint32(c.rest, n)
		}
		return true
	}
	if c.n == c.connections {
		c.turn, c.n = c.turn+1, 0
	}
	if c.turn == c.turns {
		return false
	}
	size := uint32(1000)
	if c.n < largest {
		size = 1448
	}
	b := c.packet[:]
	clear(b)
	at := time.Duration(c.turn)*c.every + time.Duration(c.n)*time.Microsecond
	order.PutUint32(b, uint32(1000+at/time.Second))
	order.PutUint32(b[4:], uint32(at%time.Second/time.Microsecond))
	order.PutUint32(b[8:], 52)
	order.PutUint32(b[12:], 52+size)
	ip, tcp := b[16:36], b[36:]
	net := binary.BigEndian
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	net.PutUint16(ip[2:], uint16(52+size))
	net.PutUint16(ip[4:], uint16(c.turn))
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	ports := [2]uint16{uint16(1024 + c.n), 80}
	sent := [2]uint32{1 + size*uint32((c.turn+1)/2), 1 + size*uint32(c.turn/2)}
	from := c.turn % 2
	ip[15], ip[19] = byte(1+from), byte(2-from)
	net.PutUint16(tcp, ports[from])
	net.PutUint16(tcp[2:], ports[1-from])
	net.PutUint32(tcp[4:], sent[from])
	net.PutUint32(tcp[8:], sent[1-from])
	tcp[12], tcp[13] = 8<<4, 0x18
	net.PutUint16(tcp[14:], 1000)
	copy(tcp[20:], []byte{1, 1, 8, 10})
	net.PutUint32(tcp[24:], uint32(at/time.Millisecond))
	net.PutUint32(tcp[28:], uint32(at/time.Millisecond))
	c.rest = b
	c.n++
	return true
}

// TestCrowd bounds the samples of many connections: the largest keep theirs, and the others
// enough for a verdict.
func TestCrowd(t *testing.T) {
	const connections = 1000
	alone, err := Read(&crowd{connections: 1, turns: 700, every: 100 * time.Millisecond}, Options{})
	must(t, err)
	want := alone.Connections[0].Directions[client].Observation.Samples
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	result, err := Read(&crowd{connections: connections, turns: 700, every: 100 * time.Millisecond}, Options{})
	must(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	total := 0
	for k, c := range result.Connections {
		for i := range c.Directions {
			n := len(c.Directions[i].Observation.Samples)
			if k < largest && n != len(want) {
				t.Errorf("%v, one of the largest, has %d samples, and alone %d", c.Client, n, len(want))
			}
			total += n
			if n < minSamples/2 {
				t.Fatalf("%v has %d samples", c.Client, n)
			}
		}
	}
	if len(result.Connections) != connections || total > samplesEach*connections+2*connections {
		t.Errorf("%d connections with %d samples", len(result.Connections), total)
	}
	if held, max := after.HeapAlloc-before.HeapAlloc, uint64(total)*uint64(unsafe.Sizeof(doctor.Sample{}))*9/4; held > max {
		t.Errorf("%d bytes of memory are held, want at most %d", held, max)
	}
	runtime.KeepAlive(result)
}

// TestThinOut leaves the largest connection alone, however late it becomes the largest.
func TestThinOut(t *testing.T) {
	table := &table{options: Options{MaxConnections: 1}, open: map[way]*connection{}, lone: map[key]*connection{}, room: maxAllSegments}
	for i := range 2 * largest {
		c := newConnection(key{addresses[0][client], addresses[0][server]}, 0, &table.room)
		c.half[0].count.bytesSent = int64(1000 * i)
		c.samples[0] = make([]doctor.Sample, maxSamples)
		table.ended = append(table.ended, c)
		table.samples += maxSamples
	}
	full := table.maxSamples()
	table.samples = full + 1 // those of others
	table.thinOut()
	for i, c := range table.ended {
		thin := len(c.samples[0]) < maxSamples
		if i >= largest && thin || i == 0 && !thin || len(c.samples[0]) < minSamples/2 {
			t.Errorf("connection %d has %d samples", i, len(c.samples[0]))
		}
	}
}

// BenchmarkCrowd reads a file of 90 MB with a thousand connections of 64 seconds. With
// CROWD=FILE it leaves that file, for other programs.
func BenchmarkCrowd(b *testing.B) {
	path := os.Getenv("CROWD")
	if path == "" {
		path = filepath.Join(b.TempDir(), "crowd.pcap")
	}
	file, err := os.Create(path)
	must(b, err)
	size, err := io.Copy(file, &crowd{connections: 1000, turns: 1300, every: 64 * time.Second / 1300})
	must(b, err)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		_, err := file.Seek(0, io.SeekStart)
		must(b, err)
		_, err = Read(file, Options{})
		must(b, err)
	}
	must(b, file.Close())
}
