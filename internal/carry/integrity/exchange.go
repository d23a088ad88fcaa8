package integrity

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"os"
	"time"
)

// Bounds of an exchange.
const (
	MinBytes     = 4 << 10
	MaxBytes     = 256 << 20
	DefaultBytes = 1 << 20

	patternFrame = 16 << 10 // bytes

	// minGoodputBytes is the number of bytes needed to compute a rate.
	minGoodputBytes = 4 * patternFrame
)

// order requests an exchange.
type order struct {
	Bytes int64 `json:"bytes"` // in each direction
	// PaceBps bounds the sending rate in bits per second; 0 means no bound.
	PaceBps int64 `json:"pace_bps,omitempty"`
}

func (o order) valid() bool {
	return o.Bytes >= MinBytes && o.Bytes <= MaxBytes && o.PaceBps >= 0
}

// received is one end's result for the other end's pattern.
type received struct {
	Bytes   int64 `json:"bytes"`
	Altered int64 `json:"altered"` // altered bytes
	// First is the connection offset of the first altered byte.
	First   int64         `json:"first"`
	Within  int           `json:"within"` // precision of First in bytes
	Elapsed time.Duration `json:"elapsed_ns"`
	// Cut means that the framing was altered, so the rest was unreadable.
	Cut     bool `json:"cut,omitempty"`
	Stalled bool `json:"stalled,omitempty"` // no more bytes came
	// Segments and OutOfOrder are the kernel's counts during the exchange;
	// negative: unknown.
	Segments   int64 `json:"segments"`
	OutOfOrder int64 `json:"out_of_order"`
}

// sent is the kernel's count of the sending; negative: unknown.
type sent struct {
	Segments int64 `json:"segments"`
	Lost     int64 `json:"lost"`
}

// outcome is the asker's result of an exchange.
type outcome struct {
	up, down received
	upSent   sent
	downSent *sent // nil: unknown at the other end
	upKnown  bool  // the other end has reported up
}

// exchange requests an exchange and takes part in it. The outcome is valid even
// with an error.
func (s *session) exchange(o order) (out outcome, err error) {
	s.setDeadline(time.Now().Add(wait.stalled))
	if err := s.send(kindExchange, o); err != nil {
		return out, err
	}
	before := s.figures()
	sending := s.startSending(o)
	defer sending.stop()
	out.down, err = s.receivePattern(o, sending.theirs, sending.begin)
	out.down.count(before, s.figures())
	if err != nil || out.down.cutShort() {
		return out, err
	}
	// The other end may still be receiving the pattern.
	_ = s.conn.SetReadDeadline(sending.begin.Add(wait.exchange + wait.stalled))
	err = s.expect(kindReceived, &out.up)
	out.upSent = lost(before, s.figures())
	if err == nil && !out.up.valid(o) {
		err = errProtocol
	}
	out.upKnown = err == nil
	if err != nil || out.up.cutShort() {
		return out, err
	}
	if err := sending.wait(); err != nil {
		return out, err
	}
	s.setDeadline(time.Now().Add(wait.stalled))
	if err := s.send(kindReceived, out.down); err != nil {
		return out, err
	}
	var figures sent
	if err := s.expect(kindSent, &figures); err != nil {
		return out, err
	}
	out.downSent = &figures
	return out, nil
}

// serveExchange is the other end's part of an exchange.
func (s *session) serveExchange(o order) error {
	before := s.figures()
	sending := s.startSending(o)
	defer sending.stop()
	got, err := s.receivePattern(o, sending.theirs, sending.begin)
	if err != nil {
		return err
	}
	got.count(before, s.figures())
	drained := make(chan struct{})
	if got.cutShort() {
		// Drain, so that the asker does not block in sending and reads the
		// report.
		go func() { s.drain(); close(drained) }()
	}
	err = sending.wait()
	if err == nil {
		_ = s.conn.SetWriteDeadline(time.Now().Add(wait.stalled))
		err = s.send(kindReceived, got)
	}
	if got.cutShort() {
		<-drained
		return errors.Join(err, errCutShort)
	}
	if err != nil {
		return err
	}
	s.setDeadline(time.Now().Add(2 * wait.stalled))
	var there received
	if err := s.expect(kindReceived, &there); err != nil {
		return err
	}
	return s.send(kindSent, lost(before, s.figures()))
}

var errCutShort = errors.New("the bytes of a check arrived incomplete")

// cutShort reports whether the rest was unreadable.
func (r *received) cutShort() bool { return r.Cut || r.Stalled }

// valid checks the bounds of the other end's report.
func (r *received) valid(o order) bool {
	return r.Bytes >= 0 && r.Bytes <= o.Bytes && r.Altered >= 0 && r.Altered <= o.Bytes && r.First >= 0 && r.Within >= 0 && r.Elapsed >= 0
}

// sending is the running transmission of the pattern.
type sending struct {
	session *session
	begin   time.Time
	theirs  cipher.Stream // the other end's pattern
	restore func()        // restores the socket's options
	ended   chan error
}

func (s *session) startSending(o order) *sending {
	s.exchanges++
	sending := &sending{
		session: s, begin: time.Now(), theirs: s.pattern(!s.server),
		restore: s.pace(o.PaceBps), ended: make(chan error, 1),
	}
	mine := s.pattern(s.server)
	go func() { sending.ended <- s.sendPattern(o, mine, sending.begin) }()
	return sending
}

// wait waits until everything is sent.
func (s *sending) wait() error {
	if s.ended == nil {
		return nil
	}
	err := <-s.ended
	s.ended = nil
	s.restore()
	return err
}

// stop aborts the transmission if it is running.
func (s *sending) stop() {
	if s.ended != nil {
		_ = s.session.conn.SetWriteDeadline(time.Now())
		_ = s.wait()
	}
}

// pattern is a stream of bytes that only the two ends can compute: that of the
// server, or that of the asker.
func (s *session) pattern(ofServer bool) cipher.Stream {
	purpose := "pattern up"
	if ofServer {
		purpose = "pattern down"
	}
	block, err := aes.NewCipher(s.key.derive(s.salt, purpose, 32))
	if err != nil {
		panic("integrity: " + err.Error())
	}
	var iv [aes.BlockSize]byte
	binary.BigEndian.PutUint64(iv[:], s.exchanges)
	return cipher.NewCTR(block, iv[:])
}

// sendPattern sends the ordered bytes, or as many as time allows.
func (s *session) sendPattern(o order, pattern cipher.Stream, begin time.Time) error {
	b := make([]byte, 0, sealedHead+patternFrame)
	for left := o.Bytes; left > 0 && time.Since(begin) < wait.sent; {
		n := int(min(left, patternFrame))
		b = s.appendHead(b[:0], kindPattern, n)
		b = b[:sealedHead+n]
		clear(b[sealedHead:])
		pattern.XORKeyStream(b[sealedHead:], b[sealedHead:])
		_ = s.conn.SetWriteDeadline(time.Now().Add(2 * wait.stalled))
		wrote, err := s.conn.Write(b)
		s.out.offset += int64(wrote)
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return s.send(kindEnd, nil)
}

// receivePattern compares the received bytes with the pattern.
func (s *session) receivePattern(o order, pattern cipher.Stream, begin time.Time) (r received, err error) {
	b, want := make([]byte, patternFrame), make([]byte, patternFrame)
	var first time.Time
	var firstBytes int64
	defer func() {
		if r.Bytes-firstBytes >= minGoodputBytes {
			// The first bytes were on their way before the time began.
			r.Elapsed = time.Duration(float64(r.Elapsed) * float64(r.Bytes) / float64(r.Bytes-firstBytes))
		} else {
			r.Elapsed = 0
		}
	}()
	for {
		s.extendDeadline(begin)
		k, n, err := s.readHead()
		var altered *AlteredError
		switch {
		case errors.As(err, &altered):
			r.note(altered.Offset, altered.Within, 1)
			r.Cut = true
			return r, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.Stalled = true
			return r, nil
		case err != nil:
			return r, err
		case k == kindEnd && n == 0:
			return r, nil
		case k == kindRefused, k == kindAltered:
			return r, s.instead(k, n)
		case k != kindPattern || n == 0 || n > patternFrame || r.Bytes+int64(n) > o.Bytes:
			return r, errProtocol
		}
		clear(want[:n])
		pattern.XORKeyStream(want[:n], want[:n])
		at := s.in.offset
		for got := 0; got < n; {
			s.extendDeadline(begin)
			m, err := s.conn.Read(b[got:n])
			if m > 0 {
				got += m
				s.in.offset += int64(m)
				if first.IsZero() {
					first, firstBytes = time.Now(), int64(got)
				}
			}
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				r.Bytes += int64(got)
				r.check(b[:got], want[:got], at)
				r.Stalled = true
				return r, nil
			case err != nil && got < n:
				return r, err
			}
		}
		r.Bytes += int64(n)
		r.Elapsed = time.Since(first)
		r.check(b[:n], want[:n], at)
	}
}

// extendDeadline gives the other end time for its next byte.
func (s *session) extendDeadline(begin time.Time) {
	until := time.Now().Add(wait.stalled)
	if last := begin.Add(wait.exchange); until.After(last) {
		until = last
	}
	_ = s.conn.SetReadDeadline(until)
}

func (r *received) check(got, want []byte, at int64) {
	if !bytes.Equal(got, want) {
		d := compare(got, want)
		r.note(at+int64(d.first), 1, d.count)
	}
}

func (r *received) note(offset int64, within, count int) {
	if r.Altered == 0 {
		r.First, r.Within = offset, within
	}
	r.Altered += int64(count)
}

// count adds the kernel's counts.
func (r *received) count(before, after figures) {
	r.Segments, r.OutOfOrder = after.receivedSince(before)
}

// goodputBps is the rate of received bytes; 0: too few bytes.
func (r *received) goodputBps() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Bytes) * 8 / r.Elapsed.Seconds()
}

// drain discards received bytes, so that the other end does not block in
// sending and can read its message.
func (s *session) drain() {
	_ = s.conn.SetReadDeadline(time.Now().Add(2 * wait.stalled))
	b := make([]byte, patternFrame)
	for {
		if _, err := s.conn.Read(b); err != nil {
			return
		}
	}
}

func (s *session) setDeadline(t time.Time) { _ = s.conn.SetDeadline(t) }
