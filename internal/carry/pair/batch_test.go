package pair

import (
	"io"
	"sync/atomic"
	"testing"
	"time"
)

// counted counts what is read.
type counted struct {
	io.ReadWriter
	n atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadWriter.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func TestBatchAdapts(t *testing.T) {
	var b batch
	now := time.Unix(1, 0)
	for range 20 {
		now = now.Add(batchTime / 10)
		b.adapt(now)
	}
	if b.size != batchMax {
		t.Errorf("%d bytes for a fast lane", b.size)
	}
	for range 20 {
		now = now.Add(10 * batchTime)
		b.adapt(now)
	}
	if b.size != 0 {
		t.Errorf("%d bytes for a slow lane", b.size)
	}
}
