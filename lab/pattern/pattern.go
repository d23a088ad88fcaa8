// Package pattern has the data that the lab's transfers send and compare. The sequence
// repeats with an odd length, so that bytes lost, repeated or moved by any
// power of two show.
package pattern

import (
	"bytes"
	"math/rand/v2"
	"sync"
)

// period is made at its first use: most commands do not use the lab.
var period = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20-3)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
})

// At returns at least one and at most n bytes of the sequence, n above 0, from
// an offset. The caller must not change them.
func At(offset int64, n int64) []byte {
	data := period()
	at := offset % int64(len(data))
	return data[at:min(int64(len(data)), at+n)]
}

// Match reports whether these are the sequence's bytes at an offset.
func Match(offset int64, got []byte) bool {
	for len(got) > 0 {
		want := At(offset, int64(len(got)))
		if !bytes.Equal(got[:len(want)], want) {
			return false
		}
		got, offset = got[len(want):], offset+int64(len(want))
	}
	return true
}
