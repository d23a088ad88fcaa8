package main

import (
	"bytes"
	"fmt"
	"sync"
)

// A stream's ordinary bytes have the high bit clear, and differ at every place
// where a mistake would put them. Its urgent bytes have the high bit set and
// carry their number.
const (
	period    = 1<<20 - 3
	urgentBit = 0x80
)

// streams are the ordinary bytes of the client's and the target's stream, with
// some of them repeated at the end, for slices that go beyond it. They are made
// when they are needed: the program has other uses.
var streams = sync.OnceValue(func() (s [2][]byte) {
	for i := range s {
		s[i] = make([]byte, period+maxCall)
		x := uint32(2463534242 + i)
		for k := range period {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			s[i][k] = byte(x>>8) &^ urgentBit
		}
		for k := period; k < len(s[i]); k++ {
			s[i][k] = s[i][k-period]
		}
	}
	return s
})

// maxCall is the most that one call moves.
const maxCall = 4 << 20

// ordinary returns n bytes of a stream from a place on.
func ordinary(stream int, at int64, n int) []byte {
	from := int(at % period)
	return streams()[stream][from : from+min(n, maxCall)]
}

func urgentByte(number int) byte { return urgentBit | byte(number) }

// verify compares bytes that were read with those at their place, and returns
// what is wrong.
func verify(stream int, at int64, urgents []int64, got []byte) string {
	next := 0
	for next < len(urgents) && urgents[next] < at {
		next++
	}
	for len(got) > 0 {
		n := len(got)
		if next < len(urgents) {
			if urgents[next] == at {
				if got[0] != urgentByte(next) {
					return fmt.Sprintf("%s in place of urgent byte %d, at %d", nameByte(got[0]), next+1, at)
				}
				got, at, next = got[1:], at+1, next+1
				continue
			}
			n = int(min(int64(n), urgents[next]-at))
		}
		if want := ordinary(stream, at, n); !bytes.Equal(got[:n], want) {
			for i := range n {
				if got[i] != want[i] {
					return fmt.Sprintf("%s in place of an ordinary one at %d", nameByte(got[i]), at+int64(i))
				}
			}
		}
		got, at = got[n:], at+int64(n)
	}
	return ""
}

func nameByte(b byte) string {
	if b&urgentBit != 0 {
		return fmt.Sprintf("urgent byte %d", b&^urgentBit+1)
	}
	return "an ordinary byte"
}
