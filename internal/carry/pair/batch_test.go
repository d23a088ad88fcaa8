package pair

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/pair/wire"
	"longhaul/test/nettest"
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

// TestBatch holds that a reader that waits for many bytes gets each frame whole without
// anything behind it, on a socket with a small buffer too.
func TestBatch(t *testing.T) {
	for name, clear := range map[string]bool{"tls": false, "clear": true} {
		t.Run(name, func(t *testing.T) {
			nettest.CheckLeaks(t)
			l := nettest.ListenTCP(t, "127.0.0.1:0")
			defer l.Close()
			out, err := net.Dial("tcp", l.Addr().String())
			nettest.Must(t, err)
			defer out.Close()
			in, err := l.AcceptTCP()
			nettest.Must(t, err)
			nettest.Must(t, in.SetReadBuffer(32<<10))
			bulk, err := newBulkConn(in)
			nettest.Must(t, err)
			var write io.Writer = out
			read := &counted{ReadWriter: bulk}
			if bulk.clear = clear; !clear {
				config := &tls.Config{Certificates: []tls.Certificate{ownCertificate(t)}, InsecureSkipVerify: true}
				write = tls.Client(out, config)
				read.ReadWriter = tls.Server(bulk, config)
			}
			lane := &lane{frames: frames{bulk: bulk, conn: read}}
			ended := make(chan error)
			go func() {
				ended <- lane.read()
				in.Close()
			}()
			want := int64(0)
			for i := range 300 {
				size := mathrand.IntN(wire.MaxPayload) + 1
				if i%3 == 0 {
					size = mathrand.IntN(2000) + 1
				}
				b := make([]byte, wire.HeadSize+size)
				wire.Frame{Type: wire.FrameData, Length: size}.Put(b)
				if clear && i%2 == 0 { // in pieces
					_, err := write.Write(b[:len(b)/2])
					nettest.Must(t, err)
					b = b[len(b)/2:]
					want += int64(wire.HeadSize+size) - int64(len(b))
				}
				_, err := write.Write(b)
				nettest.Must(t, err)
				want += int64(len(b))
				nettest.Eventually(t, time.Minute, func() bool { return read.n.Load() == want }, func() string { return "the reader waits" })
			}
			out.Close()
			if err := <-ended; err == nil {
				t.Error("no end")
			}
		})
	}
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

func ownCertificate(t *testing.T) tls.Certificate {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	nettest.Must(t, err)
	template := x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, public, private)
	nettest.Must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}
