package check

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

	// goodputLeast is what must have come before a rate is worth telling.
	goodputLeast = 4 * patternFrame
)

// order asks for an exchange.
type order struct {
	Bytes int64 `json:"bytes"` // each way
	// PaceBps bounds the rate of sending, in bits per second; 0 does not.
	PaceBps int64 `json:"pace_bps,omitempty"`
}

func (o order) valid() bool {
	return o.Bytes >= MinBytes && o.Bytes <= MaxBytes && o.PaceBps >= 0
}

// received is what one end has got of the other's pattern.
type received struct {
	Bytes   int64 `json:"bytes"`
	Altered int64 `json:"altered"` // bytes of it
	// First is the offset on the connection of the first that is altered.
	First   int64         `json:"first"`
	Within  int           `json:"within"` // how closely that is known
	Elapsed time.Duration `json:"elapsed_ns"`
	// Cut is set where the framing itself was altered: nothing behind that
	// could be read. Stalled: no more bytes came.
	Cut     bool `json:"cut,omitempty"`
	Stalled bool `json:"stalled,omitempty"`
	// Segments and OutOfOrder are what the kernel received meanwhile; negative
	// where it does not say.
	Segments   int64 `json:"segments"`
	OutOfOrder int64 `json:"out_of_order"`
}

// sent is what the kernel says of the sending; negative where it does not say.
type sent struct {
	Segments int64 `json:"segments"`
	Lost     int64 `json:"lost"`
}

// outcome is an exchange as seen by the one who asked for it.
type outcome struct {
	up, down received
	upSent   sent
	downSent *sent // nil: the other end could not tell
	upKnown  bool  // up was told by the other end
}

// exchange asks for an exchange and takes part in it. The outcome counts even
// beside an error.
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
	// The other end may still be waiting for the last of what was sent to it.
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

// serveExchange is the other end's part.
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
		// So that the asker is not stuck sending, and reads what it is told.
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

var errCutShort = errors.New("the bytes of a check did not come whole")

// cutShort says whether nothing could be read behind what came.
func (r *received) cutShort() bool { return r.Cut || r.Stalled }

// valid bounds what the other end says that it got.
func (r *received) valid(o order) bool {
	return r.Bytes >= 0 && r.Bytes <= o.Bytes && r.Altered >= 0 && r.Altered <= o.Bytes && r.First >= 0 && r.Within >= 0 && r.Elapsed >= 0
}

// sending is the pattern on its way to the other end.
type sending struct {
	session *session
	begin   time.Time
	theirs  cipher.Stream // what the other end sends meanwhile
	restore func()        // the socket's options
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

// wait waits until all is sent.
func (s *sending) wait() error {
	if s.ended == nil {
		return nil
	}
	err := <-s.ended
	s.ended = nil
	s.restore()
	return err
}

// stop ends the sending where it has not ended.
func (s *sending) stop() {
	if s.ended != nil {
		_ = s.session.conn.SetWriteDeadline(time.Now())
		_ = s.wait()
	}
}

// pattern is a stream of bytes that both ends can make and nobody else can: of
// the server's sending, or of the asker's.
func (s *session) pattern(ofServer bool) cipher.Stream {
	purpose := "pattern up"
	if ofServer {
		purpose = "pattern down"
	}
	block, err := aes.NewCipher(s.key.derive(s.salt, purpose, 32))
	if err != nil {
		panic("check: " + err.Error())
	}
	var iv [aes.BlockSize]byte
	binary.BigEndian.PutUint64(iv[:], s.exchanges)
	return cipher.NewCTR(block, iv[:])
}

// sendPattern sends as much as was asked for, or as time allows.
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

// receivePattern holds what comes against the pattern.
func (s *session) receivePattern(o order, pattern cipher.Stream, begin time.Time) (r received, err error) {
	b, want := make([]byte, patternFrame), make([]byte, patternFrame)
	var first time.Time
	var firstBytes int64
	defer func() {
		if r.Bytes-firstBytes >= goodputLeast {
			// What came first had been on its way before the time began.
			r.Elapsed = time.Duration(float64(r.Elapsed) * float64(r.Bytes) / float64(r.Bytes-firstBytes))
		} else {
			r.Elapsed = 0
		}
	}()
	for {
		s.patience(begin)
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
			s.patience(begin)
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

// patience gives the other end time for its next byte.
func (s *session) patience(begin time.Time) {
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

// count adds what the kernel has received.
func (r *received) count(before, after figures) {
	r.Segments, r.OutOfOrder = after.receivedSince(before)
}

// goodputBps is the rate at which bytes came, 0 where they were too few.
func (r *received) goodputBps() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Bytes) * 8 / r.Elapsed.Seconds()
}

// drain takes what still comes, so that the other end is not stuck sending it
// and can read what it was told.
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
