package receiver

import (
	"encoding/binary"
	"testing"
	"time"

	"longhaul/internal/sys/checksum"
)

const size = 1000

var (
	client = endpoint{[4]byte{10, 0, 0, 1}, 4000}
	server = endpoint{[4]byte{10, 0, 0, 2}, 80}
	start  = time.Unix(1e9, 0)
)

// sent returns a packet of the client.
func sent(seq uint32, flags byte, options []byte, bytes int, tos byte) []byte {
	p := build(client, server, seq, 0, flags, options)
	p[1] = tos
	p = append(p, make([]byte, bytes)...)
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	return p
}

// ackOf returns the acknowledged offset, the flags and the first SACK block.
func ackOf(t *testing.T, p []byte, firstByte uint32) (offset int64, flags byte, block span) {
	t.Helper()
	if checksum.Of(p[:ipHeaderBytes]) != 0 {
		t.Error("the checksum of the IP header is wrong")
	}
	tcp := p[ipHeaderBytes:]
	if checksum.Of(pseudoHeader(p), tcp) != 0 {
		t.Error("the checksum of the segment is wrong")
	}
	if len(tcp) > tcpHeaderBytes+4 && tcp[tcpHeaderBytes+2] == optionSACK {
		at := tcp[tcpHeaderBytes+4:]
		block = span{int64(binary.BigEndian.Uint32(at) - firstByte), int64(binary.BigEndian.Uint32(at[4:]) - firstByte)}
	}
	return int64(binary.BigEndian.Uint32(tcp[8:]) - firstByte), tcp[13], block
}

// opened returns a receiver with a connection whose first byte has a sequence number.
func opened(t *testing.T, does Behaviour, firstByte uint32) *Receiver {
	t.Helper()
	r := New(does)
	replies := r.Handle(sent(firstByte-1, flagSYN|flagECE|flagCWR, []byte{optionNone, optionNone, optionSACKPermitted, 2}, 0, 0), start)
	if len(replies) != 1 {
		t.Fatalf("%d replies to a SYN", len(replies))
	}
	if offset, flags, _ := ackOf(t, replies[0], firstByte); offset != 0 || flags != flagSYN|flagACK|flagECE {
		t.Fatalf("the SYN-ACK acknowledges %d, flags %x", offset, flags)
	}
	return r
}

// offsets hands over segments, and returns what the ACKs acknowledge.
func offsets(t *testing.T, r *Receiver, firstByte uint32, segments ...int64) (all []int64) {
	t.Helper()
	for i, n := range segments {
		for _, p := range r.Handle(sent(firstByte+uint32(n*size), flagACK, nil, size, 2), start.Add(time.Duration(i)*time.Millisecond)) {
			offset, _, _ := ackOf(t, p, firstByte)
			all = append(all, offset)
		}
	}
	return all
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestACKs(t *testing.T) {
	for _, firstByte := range []uint32{1, 1<<32 - 1500} { // the second wraps
		for _, test := range []struct {
			does     Behaviour
			segments []int64
			want     []int64
		}{
			{Honest, []int64{0, 1, 2, 3}, []int64{2000, 4000}},
			{Honest, []int64{0, 2, 3, 1, 4}, []int64{1000, 1000, 4000}}, // then one waits for the next
			{Honest, []int64{0, 0}, []int64{1000}},
			{DividesACKs, []int64{0}, []int64{100, 200, 300, 400, 500, 600, 700, 800, 900, 1000}},
			{DividesACKs, []int64{1}, []int64{0}},
			{ConcealsLoss, []int64{0, 3, 1}, []int64{1000, 4000, 4000}},
			{ConcealsMarks, []int64{0, 1}, []int64{2000}},
		} {
			r := opened(t, test.does, firstByte)
			if got := offsets(t, r, firstByte, test.segments...); !equal(got, test.want) {
				t.Errorf("%s, segments %v: ACKs of %v, want %v", test.does, test.segments, got, test.want)
			}
			if r.Received() != int64(len(test.segments)*size) {
				t.Errorf("%d bytes received", r.Received())
			}
		}
	}
}

// The lead is the bytes that arrive in 10 ms, once the rate is known.
func TestOptimisticLead(t *testing.T) {
	r := opened(t, Optimistic, 1)
	var last int64
	for i := range 200 { // 1 kB each ms
		acks := r.Handle(sent(1+uint32(i*size), flagACK, nil, size, 2), start.Add(time.Duration(i)*time.Millisecond))
		last, _, _ = ackOf(t, acks[0], 1)
	}
	if lead := last - 200*size; lead < 9*size || lead > 11*size {
		t.Errorf("the lead is %d bytes", lead)
	}
	acks := r.Handle(sent(1, flagACK, nil, size, 2), start.Add(time.Second))
	if got, _, _ := ackOf(t, acks[0], 1); got != 200*size {
		t.Errorf("a repetition is answered by %d, want what has arrived", got)
	}
}

func TestMarksAndBlocks(t *testing.T) {
	const firstByte = 1
	for does, want := range map[Behaviour]byte{Honest: flagACK | flagECE, ConcealsMarks: flagACK} {
		r := opened(t, does, firstByte)
		r.Handle(sent(firstByte, flagACK, nil, size, 2), start)
		acks := r.Handle(sent(firstByte+2*size, flagACK, nil, size, ecnCE), start)
		if len(acks) != 1 {
			t.Fatalf("%d ACKs", len(acks))
		}
		offset, flags, block := ackOf(t, acks[0], firstByte)
		if offset != size || flags != want || block != (span{2 * size, 3 * size}) {
			t.Errorf("%s: ACK of %d, flags %x, block %v", does, offset, flags, block)
		}
		acks = r.Handle(sent(firstByte+size, flagACK|flagCWR, nil, size, 2), start)
		if offset, flags, _ := ackOf(t, acks[0], firstByte); offset != 3*size || flags != flagACK {
			t.Errorf("after CWR: ACK of %d, flags %x", offset, flags)
		}
	}
}

func TestStrangers(t *testing.T) {
	r := opened(t, Honest, 1)
	other := sent(1, flagACK, nil, size, 0)
	other[15] = 9 // another address
	for name, p := range map[string][]byte{"another's": other, "empty": nil, "a pure ACK": sent(1, flagACK, nil, 0, 0)} {
		if got := r.Handle(p, start); got != nil {
			t.Errorf("%s packet is answered", name)
		}
	}
	r.Handle(sent(1, flagRST, nil, 0, 0), start)
	if got := offsets(t, r, 1, 0, 1); got != nil {
		t.Errorf("after a reset: ACKs of %v", got)
	}
}

func FuzzHandle(f *testing.F) {
	f.Add(sent(1, flagSYN, synOptions(true), 0, 0), sent(2, flagACK, nil, size, ecnCE), byte(1))
	f.Fuzz(func(t *testing.T, first, second []byte, does byte) {
		r := New(Honest + Behaviour(does%5))
		for i, p := range [][]byte{first, second, first, second} {
			for _, reply := range r.Handle(p, start.Add(time.Duration(i)*time.Second)) {
				if _, ok := parse(reply); !ok {
					t.Errorf("a reply is no segment: %x", reply)
				}
			}
		}
	})
}
