package integrity

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestRecognize(t *testing.T) {
	key := NewKey()
	hello := key.hello(stampedNonce(time.Now()))
	if len(hello) != HelloBytes {
		t.Fatalf("a hello has %d bytes", len(hello))
	}
	keys := Keys{NewKey(), key} // in either position
	for i := range hello {
		if got := keys.Recognize(hello[:i]); got != MaybeHello {
			t.Errorf("%d bytes of a hello: %v", i, got)
		}
		wrong := bytes.Clone(hello)
		wrong[i] ^= 1
		if got := keys.Recognize(wrong); got != IsHello {
			t.Errorf("with byte %d altered: %v", i, got)
		}
		_, _, d, ok := keys.openHello(wrong)
		if !ok || d.first != i || d.count != 1 {
			t.Errorf("with byte %d altered: %+v %v", i, d, ok)
		}
	}
	if got := keys.Recognize(hello); got != IsHello {
		t.Errorf("a hello: %v", got)
	}
	if got := keys.Recognize(append(hello, "more"...)); got != IsHello {
		t.Errorf("a hello with more: %v", got)
	}
	if got := (&Keys{First: NewKey()}).Recognize(hello); got != NoHello {
		t.Errorf("a hello of another key: %v", got)
	}
	if !Resembles(hello) || Resembles([]byte("GET / HTTP/1.1")) {
		t.Error("what resembles a hello is not known")
	}
	for _, first := range []string{"GET / HTTP/1.1\r\n", "\x16\x03\x01", "\xf1x", strings.Repeat("x", 200), helloMagic + strings.Repeat("\x00", 200)} {
		if got := keys.Recognize([]byte(first)); got != NoHello {
			t.Errorf("%.20q: %v", first, got)
		}
	}
}

func TestFindReply(t *testing.T) {
	key := NewKey()
	mine, theirs := stampedNonce(time.Now()), stampedNonce(time.Now())
	for _, before := range []int{0, 1, 100, 5000} {
		want := reply{theirs, uint64(before), damage{3, 2}, noRefusal}
		if before == 100 {
			want = reply{theirs, uint64(before), damage{}, refuseBusy}
		}
		greeting := strings.Repeat("x", before-min(before, 30)) + strings.Repeat(replyMagic, 4)[:min(before, 30)]
		whole := append([]byte(greeting), key.reply(mine, want)...)
		for i := range whole {
			if _, _, _, ok := key.findReply(mine, whole[:i]); ok {
				t.Fatalf("found in %d of %d bytes", i, len(whole))
			}
		}
		for i := range whole {
			wrong := bytes.Clone(whole)
			wrong[i] ^= 0x80
			got, d, start, ok := key.findReply(mine, wrong)
			if !ok || got != want || start != before || i >= before && (d.first != i-before || d.count != 1) || i < before && d.count != 0 {
				t.Fatalf("byte %d of %d altered: %+v, %+v at %d, %v", i, len(whole), got, d, start, ok)
			}
		}
		if _, _, _, ok := key.findReply(theirs, whole); ok {
			t.Error("a reply to another hello is taken")
		}
	}
}

func FuzzHello(f *testing.F) {
	key := keyOf([secretBytes]byte{1})
	keys := Keys{key, keyOf([secretBytes]byte{4})}
	hello := key.hello(nonce{2})
	f.Add(hello)
	f.Add(hello[:50])
	f.Add([]byte(strings.Repeat(helloMagic, 30)))
	f.Fuzz(func(t *testing.T, b []byte) {
		switch keys.Recognize(b) {
		case MaybeHello:
			if len(b) >= HelloBytes || !strings.HasPrefix(helloMagic, string(b[:min(len(b), magicBytes)])) {
				t.Errorf("%q may be a hello", b)
			}
		case IsHello:
			// Only an owner of the key makes one: this is the seed, with
			// damage.
			n, by, d, ok := keys.openHello(b[:HelloBytes])
			if !ok || n != (nonce{2}) || *by != key || d.count > HelloBytes {
				t.Errorf("%q is a hello with nonce %x, %+v", b, n, d)
			}
		}
	})
}

func FuzzReply(f *testing.F) {
	key := keyOf([secretBytes]byte{1})
	f.Add(key.reply(nonce{2}, reply{nonce{3}, 0, damage{}, noRefusal}))
	f.Add(append([]byte("SSH-2.0\r\n"), key.reply(nonce{2}, reply{nonce{3}, 9, damage{1, 1}, noRefusal})...))
	f.Add(key.reply(nonce{2}, reply{nonce{3}, 0, damage{}, refuseClock}))
	f.Add([]byte(strings.Repeat(replyMagic, 60)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, d, start, ok := key.findReply(nonce{2}, b); ok && (r.nonce != nonce{3} || start < 0 || start+allReplyBytes > len(b) || d.count > allReplyBytes) {
			t.Errorf("%+v, %+v at %d of %d bytes", r, d, start, len(b))
		}
	})
}
