package relay

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// systemResolver asks the way the system is set up to (/etc/hosts,
// /etc/resolv.conf), and learns how long the answer holds from the DNS
// messages that pass: the standard library's resolver does not tell.
func systemResolver(ctx context.Context, host string) (Answer, error) {
	var heard leastTTL
	r := net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			// The resolver frames messages by what kind of connection it has.
			if udp, ok := conn.(*net.UDPConn); ok {
				return &overhearUDP{udp, &heard}, nil
			}
			return &overhearTCP{Conn: conn, heard: &heard}, nil
		},
	}
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	if isNotFound(err) {
		// It also says so if one question of several (A and AAAA, each search
		// domain) was left without an answer. Strictly, all need one.
		r.StrictErrors = true
		addrs, err = r.LookupNetIP(ctx, "ip", host)
	}
	return Answer{Addrs: addrs, TTL: heard.ttl()}, err
}

// leastTTL is the least TTL of all records that were answered with.
type leastTTL struct {
	mu    sync.Mutex
	known bool
	least uint32 // seconds
}

// ttl is 0 where no record was seen, and never 0 where one was: a record that
// must not be kept is kept for as short as anything is.
func (l *leastTTL) ttl() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		return 0
	}
	return max(time.Duration(l.least)*time.Second, time.Millisecond)
}

// message reads the TTLs of an answer: those of addresses and of the aliases
// that lead to them. What is no answer counts for nothing.
func (l *leastTTL) message(data []byte) {
	var p dnsmessage.Parser
	h, err := p.Start(data)
	if err != nil || !h.Response || p.SkipAllQuestions() != nil {
		return
	}
	for {
		r, err := p.AnswerHeader()
		if err != nil {
			return
		}
		switch r.Type {
		case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME:
			l.mu.Lock()
			if !l.known || r.TTL < l.least {
				l.known, l.least = true, r.TTL
			}
			l.mu.Unlock()
		}
		if p.SkipAnswer() != nil {
			return
		}
	}
}

type overhearUDP struct {
	*net.UDPConn
	heard *leastTTL
}

func (c *overhearUDP) Read(b []byte) (int, error) {
	n, err := c.UDPConn.Read(b)
	if err == nil {
		c.heard.message(b[:n])
	}
	return n, err
}

// overhearTCP sees a stream of messages, each behind its length
// (RFC 1035, section 4.2.2).
type overhearTCP struct {
	net.Conn
	heard *leastTTL
	seen  []byte
}

func (c *overhearTCP) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.seen = append(c.seen, b[:n]...)
	for len(c.seen) >= 2 {
		end := 2 + int(binary.BigEndian.Uint16(c.seen))
		if len(c.seen) < end {
			break
		}
		c.heard.message(c.seen[2:end])
		c.seen = c.seen[end:]
	}
	return n, err
}
