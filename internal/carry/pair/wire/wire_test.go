package wire

import (
	"bytes"
	"errors"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/proxyproto"
)

var (
	client = netip.MustParseAddrPort("192.0.2.1:40000")
	listen = netip.MustParseAddrPort("[2001:db8::1]:443")
)

func TestHello(t *testing.T) {
	want := Hello{Origin: "host 127.0.0.1:9000", Boot: 9, Lowest: 1, Highest: 3, Instance: 1 << 63, Session: 7, Tunnel: "files", Release: "1.2", Features: FeatureClear, Problem: "denied", Follows: 1<<63 + 5,
		Resume: 90 * time.Second}
	b := want.Append(nil)
	unknown := append(bytes.Clone(b), 99, 0, 1, 'x')
	unknown[1] += 4
	for _, b := range [][]byte{b, unknown} {
		r := bytes.NewReader(append(b, "behind"...))
		got, err := ReadHello(r)
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if r.Len() != len("behind") {
			t.Errorf("%d bytes left", r.Len())
		}
	}
	later := append(bytes.Clone(b), helloMore, 0, 2, 1, 0xff) // further bits, of a later release
	later[1] += 5
	want.Features |= FeatureSums
	for _, b := range [][]byte{want.Append(nil), later} {
		if got, err := ReadHello(bytes.NewReader(b)); err != nil || got != want {
			t.Errorf("with further features: %+v, %v, want %+v", got, err, want)
		}
	}
	want.Owed = flowsOf(t, 7, 8, 1<<40)
	if got, err := ReadHello(bytes.NewReader(want.Append(nil))); err != nil || got != want {
		t.Errorf("with owed flows: %+v, %v, want %+v", got, err, want)
	}
	for _, a := range []string{"192.0.2.1:6000", "[2001:db8::1]:6000", "[::ffff:192.0.2.1]:1"} {
		said := want
		said.Address = netip.MustParseAddrPort(a)
		got, err := ReadHello(bytes.NewReader(said.Append(nil)))
		said.Address = netip.AddrPortFrom(said.Address.Addr().Unmap(), said.Address.Port())
		if err != nil || got != said {
			t.Errorf("with address %s: %+v, %v, want %+v", a, got, err, said)
		}
	}
	for _, a := range []string{"192.0.2.1:0", "0.0.0.0:1", "[fe80::1%eth0]:1", "[fe80::1]:1", "[ff02::1]:1"} {
		said := want
		said.Address = netip.MustParseAddrPort(a)
		if got, err := ReadHello(bytes.NewReader(said.Append(nil))); err != nil || got != want {
			t.Errorf("HELLO carries the address %s: %+v, %v", a, got, err)
		}
	}
	for n := range b {
		if _, err := ReadHello(bytes.NewReader(b[:n])); err == nil {
			t.Errorf("%d bytes of %d are a HELLO", n, len(b))
		}
	}
}

func flowsOf(t testing.TB, numbers ...uint64) (f Flows) {
	t.Helper()
	last := uint64(0)
	for _, number := range numbers {
		var fits bool
		if f, fits = f.AppendFlow(number, last); !fits {
			t.Fatalf("%d numbers do not fit", len(numbers))
		}
		last = number
	}
	return f
}

func TestFlows(t *testing.T) {
	want := []uint64{1, 2, 300, math.MaxUint64}
	f := flowsOf(t, want...)
	if f != "\x01\x01\xaa\x02\xd3\xfd\xff\xff\xff\xff\xff\xff\xff\x01" {
		t.Errorf("numbers are %q", f)
	}
	if got := f.Numbers(); !slices.Equal(got, want) {
		t.Errorf("numbers are %d, want %d", got, want)
	}
	for _, f := range []Flows{"\x01\x00", "\x80", f + "\x01", Flows(strings.Repeat("\x01", maxFlows+1))} {
		if got := f.Numbers(); got != nil {
			t.Errorf("%q has the numbers %d", f, got)
		}
	}
	full := flowsOf(t, func() (all []uint64) {
		for number := range uint64(maxFlows) {
			all = append(all, 1+number)
		}
		return all
	}()...)
	if _, fits := full.AppendFlow(maxFlows+1, maxFlows); fits {
		t.Error("there is room beyond the bound")
	}
	far := Hello{Lowest: 1, Highest: 1, Instance: 1, Session: 1, Tunnel: strings.Repeat("t", maxText), Release: strings.Repeat("r", maxText),
		Features: FeatureClear | FeatureSums, Follows: 1, Owed: full, Address: netip.MustParseAddrPort("[2001:db8::1]:6000")}
	if got, err := ReadHello(bytes.NewReader(far.Append(nil))); err != nil || got != far {
		t.Errorf("a far end's longest HELLO: %v", err)
	}
}

func TestHelloRefused(t *testing.T) {
	for name, b := range map[string][]byte{
		"without versions": {0, 0},
		"version order":    {0, 5, 1, 0, 2, 3, 1},
		"long":             append([]byte{0xff, 0xff}, make([]byte, 1<<16)...),
		"value cut":        {0, 4, 1, 0, 2, 1},
		"short number":     {0, 8, 1, 0, 2, 1, 1, 2, 0, 0},
		"short boot":       {0, 9, 1, 0, 2, 1, 1, 11, 0, 1, 5},
		"short owed":       {0, 12, 1, 0, 2, 1, 1, 13, 0, 4, 1, 2, 3, 4},
		"no flow is owed":  {0, 16, 1, 0, 2, 1, 1, 13, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8},
		"owed twice":       {0, 18, 1, 0, 2, 1, 1, 13, 0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0},
		"short address":    {0, 10, 1, 0, 2, 1, 1, 14, 0, 2, 1, 1},
		"no address":       {0, 8, 1, 0, 2, 1, 1, 14, 0, 0},
		"address of 5":     {0, 15, 1, 0, 2, 1, 1, 14, 0, 7, 1, 2, 3, 4, 5, 0, 1},
		"port 0":           {0, 14, 1, 0, 2, 1, 1, 14, 0, 6, 192, 0, 2, 1, 0, 0},
		"any address":      {0, 14, 1, 0, 2, 1, 1, 14, 0, 6, 0, 0, 0, 0, 0, 1},
		"multicast":        {0, 14, 1, 0, 2, 1, 1, 14, 0, 6, 224, 0, 0, 1, 0, 1},
		"IPv4 as IPv6":     {0, 26, 1, 0, 2, 1, 1, 14, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1, 0, 1},
		"short time":       {0, 9, 1, 0, 2, 1, 1, 8, 0, 1, 5},
	} {
		if _, err := ReadHello(bytes.NewReader(b)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSpeaks(t *testing.T) {
	for _, c := range []struct {
		low, high byte
		want      bool
	}{{1, 1, true}, {1, 9, true}, {2, 9, false}} {
		if got := (Hello{Lowest: c.low, Highest: c.high}).Speaks(); got != c.want {
			t.Errorf("%d to %d: %v", c.low, c.high, got)
		}
	}
}

func TestOpen(t *testing.T) {
	for _, want := range []Open{
		{Flow: 1, Deadline: 10 * time.Second, Client: client, Listen: netip.MustParseAddrPort("192.0.2.2:1")},
		{Flow: 1 << 63, Deadline: time.Millisecond, Client: netip.MustParseAddrPort("[2001:db8::2]:9"), Listen: listen},
		{Flow: 2, Deadline: time.Second, Client: netip.MustParseAddrPort("[2001:db8::2]:9"), Listen: listen, Name: flow.NewName(),
			Via: flow.Via(strings.Repeat("r", 8*flow.MaxVia)), Offset: 999},
	} {
		b := want.Append(nil)
		f, err := ParseFrame(b)
		if err != nil || f.Type != FrameOpen || f.Length != len(b)-HeadSize {
			t.Fatalf("head %+v, %v of %d bytes", f, err, len(b))
		}
		got, err := ParseOpen(b[HeadSize:])
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, extension := range map[string]struct {
		kind  byte
		value string
	}{
		"short name":      {proxyproto.UniqueID, "15 bytes of name"[:15]},
		"long name":       {proxyproto.UniqueID, "17 bytes of name."},
		"part of a relay": {openVia, "9 bytes.."},
		"many relays":     {openVia, strings.Repeat("r", 8*(flow.MaxVia+1))},
		"long offset":     {openOffset, "\x00\x00\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			b := []byte{0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 3, 0xe8}
			header := proxyproto.AppendHeader(nil, 2, proxyproto.Header{Source: client, Destination: listen})
			b = append(b, proxyproto.AppendExtension(header, extension.kind, []byte(extension.value))...)
			if o, err := ParseOpen(b); err == nil {
				t.Errorf("it was read as %+v", o)
			}
		})
	}
}

func TestFrames(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		want Frame
	}{
		{AppendAttach(nil, 5, 77), Frame{Type: FrameAttach, Length: 8, Offset: 77}},
		{AppendBegin(nil, 5), Frame{Type: FrameAttach, Flags: FlagBegin, Length: 8}},
		{AppendEnd(nil, 9, 0xdeadbeef), Frame{Type: FrameEnd, Length: 4, Offset: 9}},
		{AppendRelease(nil, FlagFinal, 3), Frame{Type: FrameRelease, Flags: FlagFinal, Offset: 3}},
	} {
		if got, err := ParseFrame(c.b); err != nil || got != c.want {
			t.Errorf("got %+v, %v, want %+v", got, err, c.want)
		}
	}
	if got := ParseAttach(AppendAttach(nil, 5, 77)[HeadSize:]); got != 5 {
		t.Errorf("flow %d", got)
	}
	if got := ParseEnd(AppendEnd(nil, 9, 0xdeadbeef)[HeadSize:]); got != 0xdeadbeef {
		t.Errorf("sum %x", got)
	}
}

// TestSums holds that no single bit of a head or of an ATTACH's flow is altered unnoticed.
func TestSums(t *testing.T) {
	for name, frame := range map[string][]byte{
		"ATTACH": AppendAttach(nil, 5, 77), "RELEASE": AppendRelease(nil, FlagFinal, 3), "DATA": appendHead(nil, Frame{Type: FrameData, Length: 9}),
	} {
		b := WithSums(frame)
		parts := [][]byte{b[:HeadSize+SumSize]}
		if rest := b[HeadSize+SumSize:]; len(rest) > 0 {
			parts = append(parts, rest)
		}
		var plain []byte
		for _, part := range parts {
			if err := CheckSum(part); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			plain = append(plain, part[:len(part)-SumSize]...)
			for bit := range 8 * len(part) {
				part[bit/8] ^= 1 << (bit % 8)
				if err := CheckSum(part); err != ErrSum {
					t.Errorf("%s: bit %d is altered: %v", name, bit, err)
				}
				part[bit/8] ^= 1 << (bit % 8)
			}
		}
		if !bytes.Equal(plain, frame) {
			t.Errorf("%s is %x with sums", name, b)
		}
	}
}

func TestFramesRefused(t *testing.T) {
	for _, f := range []Frame{
		{}, {Type: 7}, {Type: FrameData}, {Type: FrameData, Length: MaxPayload + 1}, {Type: FrameEnd, Length: 5},
		{Type: FrameAttach}, {Type: FrameOpen, Length: 11}, {Type: FrameRelease, Length: 1},
		{Type: FrameData, Length: 1, Offset: 1 << 63},
	} {
		var b [HeadSize]byte
		f.Put(b[:])
		if _, err := ParseFrame(b[:]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

var messages = []Message{
	{Type: MessageEnd, Flow: 1, Offset: 1 << 40, CRC: 0xdeadbeef},
	{Type: MessageSent, Flow: 1, Offset: 1 << 40},
	{Type: MessageTrouble, Text: "has no hop"},
	{Type: MessageTrouble},
	{Type: MessageTrace, Flow: 9, Within: 1500 * time.Millisecond},
	{Type: MessageTraced, Flow: 9, Bytes: []byte(`{"relays":[]}`)},
	{Type: MessageOpened, Flow: 1, Text: "192.0.2.1:22"},
	{Type: MessageRefused, Flow: 2, Reason: 3, Text: "connection refused"},
	{Type: MessageAck, Flow: 3, Flags: FlagEnd, Offset: 1 << 40},
	{Type: MessageReset, Flow: 4, Flags: FlagEnd, Offset: 9, Reason: 1, Text: "reset"},
	{Type: MessageGone, Flow: 5},
	{Type: MessageWake, Flow: 6, Offset: 10, Bytes: []byte("abc")},
	{Type: MessagePing, Bytes: []byte("12345678")},
	{Type: MessagePong, Bytes: []byte("12345678")},
	{Type: MessageDrain},
	{Type: MessageKey, Bytes: bytes.Repeat([]byte{1}, 32)},
	{Type: MessageKeyTaken, Bytes: bytes.Repeat([]byte{2}, 32)},
	{Type: MessageOpen, Flow: 7, Bytes: []byte("GET /"), Open: &Open{Flow: 7, Deadline: time.Second, Client: listen, Listen: listen}},
	{Type: MessageHeld, Flow: 8, Spans: []Span{{From: 5, To: 9}, {From: 1 << 40, To: 1<<40 + 1}}},
}

func TestMalformedMessages(t *testing.T) {
	odd := Message{Type: MessageHeld, Spans: []Span{{From: 1, To: 2}}}.Append(nil)
	odd[3]--
	for name, b := range map[string][]byte{
		"HELD without spans":        Message{Type: MessageHeld}.Append(nil),
		"HELD with half a span":     odd,
		"HELD with too many spans":  Message{Type: MessageHeld, Spans: make([]Span, MaxSpans+1)}.Append(nil),
		"HELD with a span backward": Message{Type: MessageHeld, Spans: []Span{{From: 2, To: 1}}}.Append(nil),
		"TRACE without a time":      {byte(MessageTrace), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		"TRACE with more":           append([]byte{byte(MessageTrace), 0, 0, 3}, make([]byte, 11)...),
		"TRACED that is too long":   Message{Type: MessageTraced, Bytes: make([]byte, MaxTraced+1)}.Append(nil),
		"HELD beyond all streams":   Message{Type: MessageHeld, Spans: []Span{{From: 1, To: maxOffset + 1}}}.Append(nil),
	} {
		if m, err := ReadMessage(bytes.NewReader(b), new([]byte)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

func TestMessages(t *testing.T) {
	var stream []byte
	for _, m := range messages {
		stream = m.Append(stream)
	}
	r := bytes.NewReader(stream)
	for _, want := range messages {
		got, err := ReadMessage(r, new([]byte))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if r.Len() > 0 {
		t.Errorf("%d bytes left", r.Len())
	}
}

func TestMessageTextIsCut(t *testing.T) {
	b := Message{Type: MessageReset, Text: strings.Repeat("x", 1000)}.Append(nil)
	if m, err := ReadMessage(bytes.NewReader(b), new([]byte)); err != nil || len(m.Text) != maxText {
		t.Errorf("%d bytes, %v", len(m.Text), err)
	}
}

// TestTextsAreShown holds that no text of the other end turns a line around or commands a
// terminal, and that a target is an address.
func TestTextsAreShown(t *testing.T) {
	const bad, shown = "a\u202eb\x1b[2J\u200b\n\xff", "a?b?[2J???"
	for _, kind := range []MessageType{MessageRefused, MessageReset} {
		b := Message{Type: kind, Text: bad}.Append(nil)
		if m, err := ReadMessage(bytes.NewReader(b), new([]byte)); err != nil || m.Text != shown {
			t.Errorf("message %d has %q, %v", kind, m.Text, err)
		}
	}
	for text, want := range map[string]string{
		"192.0.2.1:22":           "192.0.2.1:22",
		"[2001:DB8::1]:22":       "[2001:db8::1]:22",
		"[fe80::1%<script>]:22":  "[fe80::1]:22",
		"[fe80::1%\u202eeth]:22": "[fe80::1]:22",
		"server:22":              "",
		"192.0.2.1":              "",
		"<b>":                    "",
		"":                       "",
	} {
		b := Message{Type: MessageOpened, Text: text}.Append(nil)
		if m, err := ReadMessage(bytes.NewReader(b), new([]byte)); err != nil || m.Text != want {
			t.Errorf("the target %q is %q, %v; want %q", text, m.Text, err, want)
		}
	}
	h := Hello{Lowest: 1, Highest: 1, Tunnel: bad, Release: bad, Problem: bad, Origin: bad}
	want := Hello{Lowest: 1, Highest: 1, Tunnel: shown, Release: shown, Problem: shown, Origin: shown}
	if got, err := ReadHello(bytes.NewReader(h.Append(nil))); err != nil || got != want {
		t.Errorf("HELLO is %+v, %v", got, err)
	}
}

func FuzzHello(f *testing.F) {
	f.Add(Hello{Lowest: 1, Highest: 1, Tunnel: "a"}.Append(nil))
	f.Add(Hello{Lowest: 1, Highest: 1, Origin: "host [::]:1", Features: FeatureSums}.Append(nil))
	f.Add(Hello{Lowest: 1, Highest: 1, Follows: 1, Owed: flowsOf(f, 5, 600)}.Append(nil))
	f.Add(Hello{Lowest: 1, Highest: 1, Address: netip.MustParseAddrPort("192.0.2.1:6000")}.Append(nil))
	f.Add(Hello{Lowest: 1, Highest: 1, Address: netip.MustParseAddrPort("[2001:db8::1]:6000")}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ReadHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		if again, err := ReadHello(bytes.NewReader(h.Append(nil))); err != nil || again != h {
			t.Errorf("%+v again is %+v, %v", h, again, err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(Open{Flow: 1, Deadline: time.Second, Client: client, Listen: client}.Append(nil))
	f.Add(AppendEnd(nil, 1, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeadSize {
			return
		}
		frame, err := ParseFrame(b)
		if err != nil || frame.Length > len(b)-HeadSize {
			return
		}
		var head [HeadSize]byte
		frame.Put(head[:])
		if again, err := ParseFrame(head[:]); err != nil || again != frame {
			t.Errorf("%+v again is %+v, %v", frame, again, err)
		}
		if frame.Type == FrameOpen {
			_, _ = ParseOpen(b[HeadSize : HeadSize+frame.Length])
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, m := range messages {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ReadMessage(bytes.NewReader(b), new([]byte))
		if err != nil {
			return
		}
		again, err := ReadMessage(bytes.NewReader(m.Append(nil)), new([]byte))
		if err != nil || again.Type != m.Type || again.Offset != m.Offset || again.Text != m.Text || again.Within != m.Within || !bytes.Equal(again.Bytes, m.Bytes) {
			t.Errorf("%+v again is %+v, %v", m, again, err)
		}
	})
}
