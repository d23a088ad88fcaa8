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
	signed := func(change func(b []byte)) []byte {
		b, k := bytes.Clone(b), HostKey(key(1))
		change(b)
		copy(b[tagAt:], k.tag(b[:tagAt]))
		return b
	}
	altered := bytes.Clone(b)
	altered[nonceAt]++
	host, join := HostKey(key(1)), JoinKey(key(3))
	both := Keys{Hosts: []Key{HostKey(key(2)), host}, Joins: []Key{JoinKey(key(4)), join}}
	hosts, joins := Keys{Hosts: both.Hosts}, Keys{Joins: both.Joins}
	kind := func(k Kind, key Key) []byte { return Preface{Kind: k, Instance: 1 << 60}.AppendFor(nil, key) }
	for _, c := range []struct {
		name  string
		first []byte
		keys  Keys
		want  Verdict
	}{
		{"nothing", nil, both, Maybe},
		{"one byte", b[:1], both, Maybe},
		{"one byte less", b[:Size-1], both, Maybe},
		{"whole", b, both, Yes},
		{"with more", append(bytes.Clone(b), 22, 3, 1), both, Yes},
		{"another key", b, Keys{Hosts: []Key{HostKey(key(2))}}, No},
		{"no key", b, Keys{}, No},
		{"another version", signed(func(b []byte) { b[versionAt]++ }), both, No},
		{"a kind before the first", signed(func(b []byte) { b[kindAt] = 0 }), both, No},
		{"a kind behind the last", signed(func(b []byte) { b[kindAt] = 4 }), both, No},
		{"altered", altered, both, No},
		{"HTTP", []byte("GET / HTTP/1.1"), both, No},
		{"TLS", []byte{22, 3, 1}, both, No},

		{"a lane", kind(Lane, host), hosts, Yes},
		{"a join", kind(Join, join), joins, Yes},
		{"a join without an invitation", kind(Join, join), hosts, No},
		{"the beginning of one", kind(Join, join)[:kindAt+1], hosts, No},
		{"the beginning of one with an invitation", kind(Join, join)[:kindAt+1], both, Maybe},
		{"a join for another invitation", kind(Join, JoinKey(key(5))), both, No},
		{"a join with the host's key", kind(Join, host), both, No},
		{"a join with the host's key for an invitation", kind(Join, HostKey(key(3))), both, No},
		{"a lane with an invitation's key", kind(Lane, join), both, No},
		{"a control connection with an invitation's key", kind(Control, join), both, No},
		{"a lane where only joins are taken", kind(Lane, host), joins, No},
	} {
		got, verdict := c.keys.Recognize(c.first)
		if verdict != c.want || verdict == Yes && got.Instance != want.Instance {
			t.Errorf("%s: %+v, %v, want %v", c.name, got, verdict, c.want)
		}
	}
	if got, verdict := Recognize(b, key(2), key(1)); verdict != Yes || got != want {
		t.Errorf("%+v, %v, want %+v", got, verdict, want)
	}
	if _, verdict := Recognize(Preface{Kind: Join}.Append(nil, key(1)), key(1)); verdict != No {
		t.Errorf("a join with the host's key is %v", verdict)
	}
}

func TestPrefacesDiffer(t *testing.T) {
	p := Preface{Kind: Lane}
	if bytes.Equal(p.Append(nil, key(1)), p.Append(nil, key(1))) {
		t.Error("two prefaces are equal")
	}
}

func FuzzRecognize(f *testing.F) {
	k := Keys{Hosts: []Key{HostKey(key(1))}, Joins: []Key{JoinKey(key(2))}}
	f.Add(Preface{Kind: Lane}.Append(nil, key(1)))
	f.Add(Preface{Kind: Join}.Append(nil, key(1)))
	f.Add(Preface{Kind: Join}.AppendFor(nil, JoinKey(key(2))))
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, verdict := k.Recognize(b)
		for n := range min(len(b), Size) {
			if _, earlier := k.Recognize(b[:n]); verdict != No && earlier != Maybe {
				t.Errorf("%d bytes are %v, all are %v %+v", n, earlier, verdict, whole)
			}
		}
		sessions, session := Recognize(b, key(1))
		if verdict == Yes && whole.Kind != Join && (session != Yes || sessions != whole) || session == Yes && sessions.Kind == Join {
			t.Errorf("%+v is %v without invitations, and %+v %v with one", sessions, session, whole, verdict)
		}
	})
}
