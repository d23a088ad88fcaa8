package ipfix

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
)

const (
	// messageInterval paces messages over UDP. A socket of a collector has 212 992 octets with Linux's
	// defaults, some 90 messages: so it may pause for 90 ms. 1 000 000 records take 3 minutes.
	messageInterval = time.Millisecond
	// Templates are sent again after this time and so many messages (RFC 7011, section 8.4): a collector
	// that begins while a history is sent misses one second of it.
	templateInterval = 5 * time.Minute
	templateMessages = 1000
	// refusalWait is how long a delivery waits for a host's word that nothing listens. It is above the
	// round-trip time of most paths on Earth, and below the time between two deliveries.
	refusalWait = 250 * time.Millisecond
)

// udpSink sends to a collector over UDP. What the network or the collector drops is lost.
type udpSink struct {
	address string
	biflow  bool

	session *udpSession // nil: not connected
}

// udpSession is a socket, which has the records of one relay.
type udpSession struct {
	relay     string
	encoder   *encoder
	conn      net.Conn
	pace      *time.Ticker
	announced time.Time // when the templates were sent; zero: never
	since     int       // messages since then
}

// Deliver returns when all rows are sent, and nothing has said that they do not arrive.
func (s *udpSink) Deliver(ctx context.Context, rows []archive.Row) error {
	for len(rows) > 0 {
		n := ofOneRelay(rows)
		if err := s.deliver(ctx, rows[:n]); err != nil {
			_ = s.Close()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, syscall.EMSGSIZE) {
				return remedy.New(errors.New("the path to the collector does not take packets of 1448 bytes"), "use ipfix://, which is TCP")
			}
			return unreached(err)
		}
		rows = rows[n:]
	}
	return nil
}

func (s *udpSink) deliver(ctx context.Context, rows []archive.Row) error {
	if s.session != nil && s.session.relay != rows[0].Relay {
		_ = s.Close()
	}
	if s.session == nil {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "udp", s.address)
		if err != nil {
			return err
		}
		s.session = &udpSession{relay: rows[0].Relay, encoder: newEncoder(rows[0].Relay, maxUDP, s.biflow), conn: conn}
	}
	session := s.session
	session.pace = time.NewTicker(messageInterval)
	defer session.pace.Stop()
	send := func(message []byte) error { return session.send(ctx, message) }
	if session.since >= templateMessages || time.Since(session.announced) >= templateInterval {
		first := session.announced.IsZero()
		if first { // once: nfcapd 1.7.1 does not count these records, and would miss them at each time
			if err := session.encoder.types(time.Now(), send); err != nil {
				return err
			}
		}
		if err := session.encoder.templates(time.Now(), send); err != nil {
			return err
		}
		session.announced, session.since = time.Now(), 0
		if first { // before records go to nobody
			if err := session.refused(ctx); err != nil {
				return err
			}
		}
	}
	if err := session.encoder.rows(rows, time.Now, send); err != nil {
		return err
	}
	return session.refused(ctx)
}

// send sends a message when its time has come.
func (s *udpSession) send(ctx context.Context, message []byte) error {
	select {
	case <-s.pace.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.since++
	_, err := s.conn.Write(message)
	return err
}

// refused waits for the error that the collector's host or the path to it may answer with. A collector
// answers nothing; what comes all the same is thrown away.
func (s *udpSession) refused(ctx context.Context) error {
	until := time.Now().Add(refusalWait)
	if end, has := ctx.Deadline(); has && end.Before(until) {
		until = end
	}
	if err := s.conn.SetReadDeadline(until); err != nil {
		return err
	}
	var b [1]byte
	for {
		_, err := s.conn.Read(b[:])
		if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Close ends the session.
func (s *udpSink) Close() error {
	if s.session == nil {
		return nil
	}
	err := s.session.conn.Close()
	s.session = nil
	return err
}
