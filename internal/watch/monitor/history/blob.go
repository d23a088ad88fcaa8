package history

import (
	"encoding/binary"
	"math"
	"time"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
)

// blobReader reads what was stored. Once something is not as it was written,
// all that follows is zero and failed is set.
type blobReader struct {
	b      []byte
	failed bool
}

func (r *blobReader) fail() { r.b, r.failed = nil, true }

func (r *blobReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a number that is not negative.
func (r *blobReader) count() int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.fail()
		return 0
	}
	return int64(v)
}

// fixed takes n bytes, at most 8; they are zero where there are not so many.
func (r *blobReader) fixed(n int) (v [8]byte) {
	if len(r.b) < n {
		r.fail()
		return v
	}
	copy(v[:], r.b[:n])
	r.b = r.b[n:]
	return v
}

func (r *blobReader) byte() byte { return r.fixed(1)[0] }

func (r *blobReader) uint32() uint32 {
	v := r.fixed(4)
	return binary.LittleEndian.Uint32(v[:])
}

func (r *blobReader) uint64() uint64 {
	v := r.fixed(8)
	return binary.LittleEndian.Uint64(v[:])
}

// err is set unless all was read as it was written.
func (r *blobReader) err() error {
	if r.failed || len(r.b) > 0 {
		return errBlob
	}
	return nil
}

// seriesFormat is the first byte of a series.
const seriesFormat = 1

// EncodeSeries writes a series with a byte for each value: the square root of
// its share of the largest one, which is wrong by 0.4 % of the largest at most.
// Runs of zeros, as of a direction that is idle, are two bytes. An empty series
// is nil. What longhaul keeps elsewhere of a series has this format as well.
func EncodeSeries(s monitor.Series) []byte {
	up, down := s.UpBps[:min(len(s.UpBps), monitor.SeriesLen)], s.DownBps[:min(len(s.DownBps), monitor.SeriesLen)]
	if len(up) == 0 && len(down) == 0 || s.Step.Duration() < time.Microsecond {
		return nil
	}
	var most float32
	for _, values := range [][]float32{up, down} {
		for _, v := range values {
			if v > most && v <= math.MaxFloat32 { // neither infinite nor NaN
				most = v
			}
		}
	}
	b := append(make([]byte, 0, 16+len(up)+len(down)), seriesFormat)
	b = binary.AppendUvarint(b, uint64(s.Step.Duration()/time.Microsecond))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(most))
	for _, values := range [][]float32{up, down} {
		b = append(b, byte(len(values)))
		for i := 0; i < len(values); i++ {
			c := code(values[i], most)
			b = append(b, c)
			if c > 0 {
				continue
			}
			run := 1
			for i+1 < len(values) && code(values[i+1], most) == 0 {
				run, i = run+1, i+1
			}
			b = append(b, byte(run))
		}
	}
	return b
}

func code(v, most float32) byte {
	if !(v > 0) || most == 0 {
		return 0
	}
	return byte(max(1, math.Round(255*math.Sqrt(float64(min(v, most))/float64(most)))))
}

// DecodeSeries is the inverse of EncodeSeries.
func DecodeSeries(b []byte) (monitor.Series, error) {
	var s monitor.Series
	if len(b) == 0 {
		return s, nil
	}
	r := &blobReader{b: b}
	if r.byte() != seriesFormat {
		return s, errBlob
	}
	step := r.uvarint()
	most := math.Float32frombits(r.uint32())
	if r.failed || step == 0 || step > math.MaxInt64/uint64(time.Microsecond) || !(most >= 0) || math.IsInf(float64(most), 0) {
		return s, errBlob
	}
	s.Step = units.Seconds(time.Duration(step) * time.Microsecond)
	for _, to := range []*[]float32{&s.UpBps, &s.DownBps} {
		n := int(r.byte())
		if n > monitor.SeriesLen {
			return monitor.Series{}, errBlob
		}
		values := make([]float32, 0, n)
		for len(values) < n && !r.failed {
			c := r.byte()
			run := 1
			if c == 0 {
				if run = int(r.byte()); run == 0 || run > n-len(values) {
					r.fail()
					break
				}
			}
			share := float64(c) / 255
			for range run {
				values = append(values, float32(share*share*float64(most)))
			}
		}
		*to = values
	}
	if err := r.err(); err != nil {
		return monitor.Series{}, err
	}
	return s, nil
}
