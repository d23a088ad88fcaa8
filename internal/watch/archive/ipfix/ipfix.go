// Package ipfix sends the records of flows to a collector of IPFIX (RFC 7011):
// over TCP, which loses none, or over UDP, as far as the network and the
// collector keep up.
//
// A flow is one record with both directions (a biflow, RFC 5103), or with
// biflow off a record for each. Its standard elements are those that every
// collector of flows reads. Private elements have what only longhaul knows;
// their types go along (RFC 5610), so that a collector can name them.
package ipfix

import (
	"errors"
	"net/url"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
)

// enterprise is the number of longhaul's private elements: the example of RFC 5612, section 3,
// until the project has one of its own.
const enterprise = 32473

// reverseEnterprise is that of the elements of a biflow's way back (RFC 5103, section 6.1).
const reverseEnterprise = 29305

// New makes the sink of a target. It does not wait for the network.
func New(t archive.Target) (archive.Sink, error) {
	u, err := url.Parse(t.To)
	if err != nil {
		return nil, remedy.New(errors.New("the collector is not a URL"), "write it like ipfix://10.0.0.9:4739")
	}
	if t.PasswordFile != "" {
		return nil, remedy.New(errors.New("IPFIX has no passwords"), "leave out password_file")
	}
	encrypted := t.CA != "" || t.Certificate != "" || t.Key != ""
	if u.Scheme == "ipfix+udp" {
		if encrypted {
			return nil, remedy.New(errors.New("ipfix+udp:// has no encryption"), "use ipfix://, or leave out ca, cert and key")
		}
		return &udpSink{address: u.Host, biflow: t.Biflow}, nil
	}
	s := &tcpSink{address: u.Host, biflow: t.Biflow}
	if encrypted {
		s.tls, s.name = &t, u.Hostname()
	}
	return s, nil
}
