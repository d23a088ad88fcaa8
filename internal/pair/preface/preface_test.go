package preface

import (
	"bytes"
	"crypto/ed25519"
	"testing"
)

func key(b byte) ed25519.PublicKey { return bytes.Repeat([]byte{b}, ed25519.PublicKeySize) }

func TestRecognize(t *testing.T) {
	want := Preface{Kind: Control, Instance: 1 << 60}
	b := want.Append(nil, key(1))
	if len(b) != Size {
		t.Fatalf("%d bytes", len(b))
	}
	future := Preface{Kind: Lane}.Append(nil, key(1))
	future[versionAt]++
	copy(future[tagAt:], tag(future[:tagAt], key(1)))
	altered := bytes.Clone(b)
	altered[nonceAt]++
	for _, c := range []struct {
		name  string
		first []byte
		keys  []ed25519.PublicKey
		want  Verdict
	}{
		{"nothing", nil, []ed25519.PublicKey{key(1)}, Maybe},
		{"one byte", b[:1], []ed25519.PublicKey{key(1)}, Maybe},
		{"one byte less", b[:Size-1], []ed25519.PublicKey{key(1)}, Maybe},
		{"whole", b, []ed25519.PublicKey{key(1)}, Yes},
		{"with more", append(bytes.Clone(b), 22, 3, 1), []ed25519.PublicKey{key(1)}, Yes},
		{"the second key", b, []ed25519.PublicKey{key(2), key(1)}, Yes},
		{"another key", b, []ed25519.PublicKey{key(2)}, No},
		{"no key", b, nil, No},
		{"another version", future, []ed25519.PublicKey{key(1)}, No},
		{"altered", altered, []ed25519.PublicKey{key(1)}, No},
		{"HTTP", []byte("GET / HTTP/1.1"), []ed25519.PublicKey{key(1)}, No},
		{"TLS", []byte{22, 3, 1}, []ed25519.PublicKey{key(1)}, No},
	} {
		got, verdict := Recognize(c.first, c.keys...)
		if verdict != c.want || verdict == Yes && got != want {
			t.Errorf("%s: %+v, %v, want %v", c.name, got, verdict, c.want)
		}
	}
}

func TestPrefacesDiffer(t *testing.T) {
	p := Preface{Kind: Lane}
	if bytes.Equal(p.Append(nil, key(1)), p.Append(nil, key(1))) {
		t.Error("two prefaces are equal")
	}
}

func FuzzRecognize(f *testing.F) {
	f.Add(Preface{Kind: Join}.Append(nil, key(1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, verdict := Recognize(b, key(1))
		for n := range min(len(b), Size) {
			if _, earlier := Recognize(b[:n], key(1)); verdict != No && earlier == No {
				t.Errorf("%d bytes are No, all are %v %+v", n, verdict, whole)
			}
		}
	})
}
