package identity

import (
	"bytes"
	"reflect"
	"testing"

	"longhaul/test/nettest"
)

// fuzzFile holds of a file format: what is read is written so that it is read the same.
func fuzzFile[T interface{ format() []byte }](f *testing.F, parse func([]byte) (T, error), seeds ...T) {
	for _, seed := range seeds {
		f.Add(seed.format())
	}
	f.Add([]byte("# comment\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		value, err := parse(text)
		if err != nil {
			return
		}
		again, err := parse(value.format())
		if err != nil || !reflect.DeepEqual(value, again) {
			t.Errorf("%q is %v, then %v, %v", text, value, again, err)
		}
	})
}

func FuzzParseHostKeys(f *testing.F) {
	fuzzFile(f, parseHostKeys, hostKeys{testKey(1)}, hostKeys{testKey(1), testKey(2)})
}

func FuzzParsePeers(f *testing.F) {
	fuzzFile(f, parsePeers, testPeers(), nil)
}

func FuzzParseInvitations(f *testing.F) {
	fuzzFile(f, parseInvitations, testInvitations(), nil)
}

func FuzzParseFormer(f *testing.F) {
	fuzzFile(f, parseFormer, testFormer(), nil)
}

func FuzzParseInvitation(f *testing.F) {
	inv := testInvitation()
	f.Add(inv.Line())
	inv.Name = "site-b/b1"
	f.Add(inv.Line())
	f.Add(InvitationPrefix)
	f.Add(anyPrefix + "3:")
	inv.former = true
	f.Add(inv.Line())
	f.Fuzz(func(t *testing.T, line string) {
		inv, err := ParseInvitation(line)
		if err != nil {
			return
		}
		again, err := ParseInvitation(inv.Line())
		if err != nil || !reflect.DeepEqual(inv, again) {
			t.Errorf("%q is %+v, then %+v, %v", line, inv, again, err)
		}
	})
}

// FuzzParseInvitationBytes has the sum right, to come behind it.
func FuzzParseInvitationBytes(f *testing.F) {
	inv := testInvitation()
	b, err := decode(InvitationPrefix, inv.Line())
	nettest.Must(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, prefix := range []string{InvitationPrefix, formerPrefix} {
			line := encode(prefix, b)
			if inv, err := ParseInvitation(line); err == nil && inv.Line() != line {
				t.Errorf("%x is %+v, and that is %q", b, inv, inv.Line())
			}
		}
	})
}

func FuzzParseJoin(f *testing.F) {
	r := request{verifier: testKey(1).public(), keys: []PublicKey{testKey(2).public(), testKey(3).public()}}
	a := answer{accepted, r.keys}
	f.Add(r.append(nil))
	f.Add(a.append(nil))
	f.Add((&answer{outcome: late}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRequest(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Errorf("%x is the request %+v", b, r)
		}
		if a, err := parseAnswer(b); err == nil && !bytes.Equal(a.append(nil), b) {
			t.Errorf("%x is the answer %+v", b, a)
		}
	})
}
