package names

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// system resolves as the system is configured (/etc/hosts,
// /etc/resolv.conf). The standard library's resolver does not report TTLs, so
// the function reads them from the DNS messages that pass.
func system(ctx context.Context, host string) (Answer, error) {
	var heard overheard
	r := heard.resolver()
	addrs, err := Lookup(ctx, r, host)
	if isNotFound(err) {
		// The resolver also reports this if one of several questions (A and
		// AAAA, each search domain) stayed without an answer. In strict mode,
		// it reports it only if all questions were answered.
		r.StrictErrors = true
		addrs, err = Lookup(ctx, r, host)
	}
	return Answer{Addrs: addrs, TTL: heard.ttl()}, err
}

// overheard is what the responses of a resolver's servers say beside their answers: the lowest TTL of all
// address, service and alias records seen, and the latest response code.
type overheard struct {
	mu    sync.Mutex
	known bool
	least uint32 // seconds
	rcode dnsmessage.RCode
}

// resolver is the system's, overheard.
func (l *overheard) resolver() *net.Resolver {
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			// The resolver does not end a read when its context is cancelled.
			stop := context.AfterFunc(ctx, func() {
				if errors.Is(ctx.Err(), context.Canceled) {
					_ = conn.SetDeadline(time.Unix(1, 0))
				}
			})
			// It frames messages by the type of connection.
			if udp, ok := conn.(*net.UDPConn); ok {
				return &overhearUDP{udp, l, stop}, nil
			}
			return &overhearTCP{Conn: conn, heard: l, stop: stop}, nil
		},
	}
}

// code is the code of the latest response.
func (l *overheard) code() dnsmessage.RCode {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rcode
}

// ttl returns 0 if no record was seen, and at least 1 ms otherwise. A TTL of 0
// must not read as unknown.
func (l *overheard) ttl() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		return 0
	}
	return max(time.Duration(l.least)*time.Second, time.Millisecond)
}

// message reads the code of a response and the TTLs of its address, service and alias
// records. It ignores messages that are not responses.
func (l *overheard) message(data []byte) {
	var p dnsmessage.Parser
	h, err := p.Start(data)
	if err != nil || !h.Response || p.SkipAllQuestions() != nil {
		return
	}
	l.mu.Lock()
	l.rcode = h.RCode
	l.mu.Unlock()
	for {
		r, err := p.AnswerHeader()
		if err != nil {
			return
		}
		switch r.Type {
		case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeSRV, dnsmessage.TypeCNAME:
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
	heard *overheard
	stop  func() bool
}

func (c *overhearUDP) Close() error {
	c.stop()
	return c.UDPConn.Close()
}

func (c *overhearUDP) Read(b []byte) (int, error) {
	n, err := c.UDPConn.Read(b)
	if err == nil {
		c.heard.message(b[:n])
	}
	return n, err
}

// overhearTCP reads a stream of messages, each behind its length (RFC 1035,
// section 4.2.2).
type overhearTCP struct {
	net.Conn
	heard *overheard
	seen  []byte
	stop  func() bool
}

func (c *overhearTCP) Close() error {
	c.stop()
	return c.Conn.Close()
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
