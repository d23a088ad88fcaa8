package compress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func text(n int) []byte {
	var b []byte
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, "2026-01-02T03:04:%02d.%03dZ relay[%d]: flow %d: %d bytes up\n", i/1000%60, i%1000, i%7, i*i%10007, i*7919%100003)
	}
	return b[:n]
}

func noise(n int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func TestRecord(t *testing.T) {
	for _, n := range []int{1, 2, 100, 4 << 10, 100_001, MaxPlain} {
		for name, plain := range map[string][]byte{"text": text(n), "noise": noise(n), "zeros": make([]byte, n)} {
			record := Append([]byte("before"), plain)
			got, err := Plain(make([]byte, 100), record[len("before"):])
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes of %s: %v", n, name, err)
			}
		}
	}
}

// TestBadRecords holds that nothing but a record of at most MaxPlain bytes is taken.
func TestBadRecords(t *testing.T) {
	whole := Append(nil, text(1000))
	grown := bytes.Clone(whole)
	binary.BigEndian.PutUint32(grown, 1001)
	none := bytes.Clone(whole)
	binary.BigEndian.PutUint32(none, 0)
	plain, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	bomb := plain.EncodeAll(make([]byte, 64<<20), binary.BigEndian.AppendUint32(nil, MaxPlain))
	huge := plain.EncodeAll(make([]byte, 64<<20), binary.BigEndian.AppendUint32(nil, 64<<20))
	for name, record := range map[string][]byte{
		"empty": nil, "short": whole[:MinRecord-1], "cut": whole[:len(whole)-1], "longer": append(bytes.Clone(whole), 0),
		"another length": grown, "no bytes": none, "a bomb": bomb, "a large one": huge, "no zstd": append([]byte{0, 0, 0, 9}, "no zstd here"...),
	} {
		if got, err := Plain(nil, record); !errors.Is(err, ErrRecord) || got != nil {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func FuzzPlain(f *testing.F) {
	f.Add(Append(nil, text(1000)))
	f.Add(Append(nil, noise(100)))
	f.Add(Append(nil, make([]byte, MaxPlain)))
	f.Add([]byte{0, 0, 0, 1, 0x28, 0xb5, 0x2f, 0xfd, 0, 0})
	f.Fuzz(func(t *testing.T, record []byte) {
		got, err := Plain(nil, record)
		if err != nil && len(got) > 0 || len(got) > MaxPlain {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if err == nil && int(binary.BigEndian.Uint32(record)) != len(got) {
			t.Errorf("%d bytes", len(got))
		}
	})
}

// taken counts the records of a stream that are compressed.
func taken(p *Policy, chunk []byte, n int) (records int) {
	for range n {
		if p.Append(nil, chunk) != nil {
			records++
		}
	}
	return records
}

func TestPolicy(t *testing.T) {
	var p Policy
	log, random := text(64<<10), noise(64<<10)
	if n := taken(&p, log, 8); n > 0 {
		t.Errorf("%d records although the lanes have room", n)
	}
	p.Full()
	if n := taken(&p, log, 2*fullFor/len(log)); n != fullFor/len(log) {
		t.Errorf("%d records since a lane was full, of %d", n, fullFor/len(log))
	}
	p.Full()
	if n := taken(&p, log[:minPlain-1], 8); n > 0 {
		t.Errorf("%d small records", n)
	}
	for range 64 {
		p.Full()
		if n := taken(&p, random, 16); n > 0 {
			t.Errorf("%d records of noise", n)
		}
	}
	records := 0
	for range lastPause / fullFor {
		p.Full()
		records += taken(&p, log, fullFor/len(log))
	}
	if records == 0 {
		t.Error("no record of a stream that shrinks again")
	}
}

// TestPauses holds that a stream that never shrinks is hardly looked at.
func TestPauses(t *testing.T) {
	var p Policy
	chunk, tries := noise(64<<10), 0
	for sent := 0; sent < 1<<30; sent += len(chunk) {
		p.Full()
		if _, try := p.next(len(chunk)); try {
			tries++
			p.tried(false)
		}
	}
	if tries > 6+16+1 { // 1, 2, 4 ... 64 MiB, then each 64 MiB
		t.Errorf("%d samples in a GiB", tries)
	}
}

func BenchmarkCompress(b *testing.B) {
	for name, chunk := range map[string][]byte{"text": text(MaxPlain), "noise": noise(MaxPlain)} {
		b.Run(name, func(b *testing.B) {
			var p Policy
			buf := make([]byte, 0, 272<<10)
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				p.Full()
				p.Append(buf, chunk)
			}
		})
	}
}
