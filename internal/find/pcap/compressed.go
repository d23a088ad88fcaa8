package pcap

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// maxXZ and maxZstd bound the memory in which a decompressor looks back: that of xz -9, and
// that which zstd -d allows. maxBeside bounds it for a file that is read beside others: it
// is that of xz -6 and zstd -19.
const maxXZ, maxZstd, maxBeside = 64 << 20, 128 << 20, 8 << 20

var errBeside = errors.New("it is read beside others of its time, and its compression looks back by more than 8 MiB: decompress it")

// formats are the compressed formats by their first bytes.
var formats = []struct {
	magic string
	open  func(r io.Reader, window int) (io.Reader, error)
}{
	{"\x1f\x8b", newGzip},
	{"BZh", func(r io.Reader, _ int) (io.Reader, error) { return bzip2.NewReader(r), nil }},
	{"\xfd7zXZ\x00", func(r io.Reader, window int) (io.Reader, error) { return xz.NewReader(r, uint32(min(window, maxXZ))) }},
	{"\x28\xb5\x2f\xfd", newZstd},
	{"\x50\x2a\x4d\x18", newZstd}, // a frame of pzstd before the data
}

// newGzip takes a bad header for another format: two bytes say little.
func newGzip(r io.Reader, _ int) (io.Reader, error) {
	content, err := gzip.NewReader(r)
	if err != nil {
		return nil, ErrNotCapture
	}
	return content, nil
}

// newZstd decompresses in the caller's goroutine.
func newZstd(r io.Reader, window int) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(uint64(window)))
}

// magicBytes are the bytes that tell all formats apart.
const magicBytes = 8

// decompressed returns the content of a file. A decompressor makes it as it is read, so
// that a small file with a large content takes no more memory than its window.
func decompressed(r io.Reader, window int) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	magic, _ := in.Peek(magicBytes) // the next read has the error
	for _, f := range formats {
		if bytes.HasPrefix(magic, []byte(f.magic)) {
			content, err := f.open(in, window)
			if errors.Is(err, ErrNotCapture) {
				return nil, err
			}
			if err != nil {
				return nil, &TruncatedError{Err: err}
			}
			if window <= maxBeside {
				content = &beside{content}
			}
			return bufio.NewReaderSize(content, 64<<10), nil
		}
	}
	return in, nil
}

// beside says that the bound of a file that is read beside others is reached.
type beside struct{ io.Reader }

func (b *beside) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, xz.ErrMemlimit) {
		err = errBeside
	}
	return n, err
}
