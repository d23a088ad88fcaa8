package integrity

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// tape is a recorded connection, and one that records.
type tape struct {
	io.Reader
	written bytes.Buffer
}

func (t *tape) Write(b []byte) (int, error)      { return t.written.Write(b) }
func (t *tape) Close() error                     { return nil }
func (t *tape) SetDeadline(time.Time) error      { return nil }
func (t *tape) SetReadDeadline(time.Time) error  { return nil }
func (t *tape) SetWriteDeadline(time.Time) error { return nil }

func recorded(send func(*session) error) ([]byte, error) {
	key := keyOf([secretBytes]byte{1})
	out := &tape{}
	err := send(newSession(out, &key, nonce{2}, nonce{3}, false))
	return out.written.Bytes(), err
}

func played(b []byte) *session {
	key := keyOf([secretBytes]byte{1})
	return newSession(&tape{Reader: bytes.NewReader(b)}, &key, nonce{2}, nonce{3}, true)
}

// Every byte of a conversation is protected, and an altered one is located.
func TestEveryByteIsGuarded(t *testing.T) {
	b, err := recorded(func(s *session) error {
		return errors.Join(s.send(kindAsk, nil), s.send(kindExchange, order{Bytes: 5000}))
	})
	if err != nil {
		t.Fatal(err)
	}
	read := func(s *session) error {
		var o order
		if err := s.expect(kindAsk, nil); err != nil {
			return err
		}
		if err := s.expect(kindExchange, &o); err != nil {
			return err
		}
		if o.Bytes != 5000 {
			t.Errorf("want an order of 5000 bytes, got %+v", o)
		}
		return nil
	}
	if err := read(played(b)); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		wrong := bytes.Clone(b)
		wrong[i] ^= 4
		var altered *AlteredError
		at := int64(i) + HelloBytes
		if err := read(played(wrong)); !errors.As(err, &altered) || at < altered.Offset || at >= altered.Offset+int64(altered.Within) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	if err := read(played(b[20:])); err == nil {
		t.Error("a frame is left out, and nobody notices")
	}
	if err := read(played(append(bytes.Clone(b[:20]), b...))); err == nil {
		t.Error("a frame is repeated, and nobody notices")
	}
}

// The messages of an authentic peer are bounded.
func TestPeersAreBounded(t *testing.T) {
	for name, send := range map[string]func(*session) error{
		"out of turn":  func(s *session) error { return s.send(kindLeg, leg{}) },
		"no body":      func(s *session) error { return s.send(kindAnswer, nil) },
		"another body": func(s *session) error { return s.send(kindAnswer, []int{1}) },
		"a long body": func(s *session) error {
			_, err := s.conn.Write(s.appendHead(nil, kindAnswer, maxMessage+1))
			return err
		},
		"no kind of next": func(s *session) error { return s.send(kindAnswer, Answer{}) },
		"refusal":         func(s *session) error { return s.send(kindRefused, refusedError{"no\x1b[2J"}) },
	} {
		b, err := recorded(send)
		if err != nil {
			t.Fatal(err)
		}
		a := &Answer{}
		err = played(b).expect(kindAnswer, a)
		if err == nil {
			err = a.bound()
		}
		var refused *refusedError
		if errors.As(err, &refused) {
			if name != "refusal" || refused.Why != "no?[2J" {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []leg{
		{},
		{Passes: make([]pass, 3), Trouble: &trouble{}},
		{Passes: []pass{{Up: received{Bytes: -1}}}, Trouble: &trouble{}},
		{Passes: []pass{{Down: received{Bytes: MaxBytes + 1}}}, Trouble: &trouble{}},
		{Answer: &Answer{Next: "elsewhere"}},
	} {
		if err := bad.bound(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	for _, bad := range []order{{}, {Bytes: MinBytes - 1}, {Bytes: MaxBytes + 1}, {Bytes: MinBytes, PaceBps: -1}} {
		if bad.valid() {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// FuzzFrames reads arbitrary bytes as a conversation with an asker.
func FuzzFrames(f *testing.F) {
	for _, send := range []func(*session) error{
		func(s *session) error { return s.send(kindAsk, nil) },
		func(s *session) error {
			return errors.Join(s.send(kindNext, order{Bytes: MinBytes}), s.send(kindBye, nil))
		},
		func(s *session) error {
			s.exchanges = 1
			return errors.Join(s.send(kindExchange, order{Bytes: MinBytes}), s.sendPattern(order{Bytes: MinBytes}, s.pattern(false), time.Now()), s.send(kindReceived, received{}))
		},
	} {
		b, err := recorded(send)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	key := keyOf([secretBytes]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		mine := nonce{2}
		client := &tape{Reader: io.MultiReader(bytes.NewReader(key.hello(mine)), bytes.NewReader(b))}
		server := Server{Keys: Keys{First: key}, Next: NextRelay, Guard: newGuard(NewMemory())}
		if server.Serve(t.Context(), Flow{Client: client, Reason: Refused}) {
			t.Error("it goes on, and leads nowhere")
		}
		s := played(b)
		_, _ = s.receivePattern(order{Bytes: MinBytes}, s.pattern(false), time.Now())
	})
}

func TestLoss(t *testing.T) {
	sentOf := func(lost, segments int64) sent { return sent{segments, lost} }
	for _, tt := range []struct {
		name   string
		passes []pass
		want   string
	}{
		{"none", []pass{{UpSent: sentOf(0, 724), DownSent: sentOf(0, 724)}}, ""},
		{"one is chance", []pass{{UpSent: sentOf(1, 724), DownSent: sentOf(1, 724)}}, ""},
		{"two are chance, if there are no more", []pass{{UpSent: sentOf(2, 724)}, {UpSent: sentOf(1, 1448)}}, ""},
		{"1 %", []pass{{UpSent: sentOf(7, 724)}, {UpSent: sentOf(6, 724)}}, upwards},
		{"one of few", []pass{{UpSent: sentOf(4, 400)}, {UpSent: sentOf(1, 300)}}, upwards},
		{"gone in a calm exchange", []pass{{UpSent: sentOf(40, 724)}, {UpSent: sentOf(0, 724)}}, ""},
		{"nearly gone", []pass{{DownSent: sentOf(40, 7240)}, {DownSent: sentOf(1, 7240)}}, ""},
		{"both ways", []pass{{UpSent: sentOf(8, 724), DownSent: sentOf(9, 724)}, {UpSent: sentOf(3, 400), DownSent: sentOf(2, 400)}}, bothWays},
		{"not known", []pass{{UpSent: sentOf(-1, -1), DownSent: sentOf(-1, -1)}}, ""},
		{"few of many", []pass{{DownSent: sentOf(20, 72400)}, {DownSent: sentOf(40, 144800)}}, ""},
		{"behind a proxy", []pass{{UpSent: sentOf(0, 724), Up: received{Segments: 724, OutOfOrder: 90}}, {UpSent: sentOf(0, 724), Up: received{Segments: 724, OutOfOrder: 30}}}, upwards},
	} {
		l := leg{Passes: tt.passes}
		if got, _ := l.loses(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	var before, after figures
	if got := lost(before, after); got != sentOf(-1, -1) {
		t.Errorf("unknown figures: %+v", got)
	}
	before.known, after.known = true, true
	before.Know(tcpinfo.FieldDataSegsOut, tcpinfo.FieldTotalRetrans, tcpinfo.FieldDSACKDups)
	after.Know(tcpinfo.FieldDataSegsOut, tcpinfo.FieldTotalRetrans, tcpinfo.FieldDSACKDups)
	before.DataSegsOut, after.DataSegsOut = 10, 110
	before.TotalRetrans, after.TotalRetrans, after.DSACKDups = 1, 6, 2
	if got := lost(before, after); got != sentOf(3, 100) {
		t.Errorf("5 sent again, 2 for nothing: %+v", got)
	}
}
