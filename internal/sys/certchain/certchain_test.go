package certchain

import (
	"crypto/x509"
	"testing"
	"time"
)

// cert is a certificate by names, valid between two days.
func cert(subject, issuer string, from, until int) *x509.Certificate {
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	return &x509.Certificate{RawSubject: []byte(subject), RawIssuer: []byte(issuer), NotBefore: day(from), NotAfter: day(until)}
}

// TestValidity holds that the first certificate of a chain that ends decides, that one that is of no use to it
// does not, and that of two for an issuer the later end counts.
func TestValidity(t *testing.T) {
	leaf := cert("leaf", "middle", 5, 20)
	for name, c := range map[string]struct {
		above       []*x509.Certificate
		from, until int
	}{
		"alone":                {nil, 5, 20},
		"a longer issuer":      {[]*x509.Certificate{cert("middle", "root", 1, 30)}, 5, 20},
		"a shorter issuer":     {[]*x509.Certificate{cert("middle", "root", 6, 10)}, 6, 10},
		"a shorter root":       {[]*x509.Certificate{cert("root", "root", 1, 8), cert("middle", "root", 1, 30)}, 5, 8},
		"one of no use":        {[]*x509.Certificate{cert("other", "root", 1, 2), cert("middle", "root", 1, 30)}, 5, 20},
		"signed twice":         {[]*x509.Certificate{cert("middle", "old", 1, 3), cert("middle", "root", 1, 30)}, 5, 20},
		"issuers in a circle":  {[]*x509.Certificate{cert("middle", "upper", 1, 30), cert("upper", "middle", 1, 12)}, 5, 12},
		"the issuer is itself": {[]*x509.Certificate{cert("middle", "middle", 1, 30)}, 5, 20},
	} {
		from, until := Validity(leaf, c.above)
		if from.Day() != c.from || until.Day() != c.until {
			t.Errorf("%s: from %d until %d, want %d and %d", name, from.Day(), until.Day(), c.from, c.until)
		}
	}
	if until := Until([][]*x509.Certificate{{leaf, cert("middle", "root", 1, 9)}, {leaf, cert("middle", "old", 1, 12)}}); until.Day() != 12 {
		t.Errorf("of two chains the end is %v", until)
	}
	if !Until(nil).IsZero() {
		t.Error("no chain has an end")
	}
}
