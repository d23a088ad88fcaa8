package ipfix

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"longhaul/internal/sys/socket"
	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
)

// tcpSink sends to a collector over TCP, with TLS where there are files for it. The collector has a
// record when its kernel has acknowledged it: IPFIX has no acknowledgement of its own.
type tcpSink struct {
	address string
	biflow  bool
	tls     *archive.Target // has the files; nil: without TLS
	name    string          // that the collector's certificate must have

	session *tcpSession // nil: not connected
}

// tcpSession is a connection, which has the records of one relay.
type tcpSession struct {
	relay   string
	encoder *encoder
	tcp     *net.TCPConn
	conn    net.Conn      // tcp, or TLS in it
	ended   chan struct{} // closed when the collector has ended the connection
	endErr  error         // then: nil if it read everything that its kernel had
}

// Deliver returns when the collector's kernel has acknowledged all rows.
func (s *tcpSink) Deliver(ctx context.Context, rows []archive.Row) error {
	for len(rows) > 0 {
		n := ofOneRelay(rows)
		if err := s.deliver(ctx, rows[:n]); err != nil {
			if s.session != nil {
				_ = s.session.tcp.Close() // without a word of TLS, for which there may be no room
				s.session = nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// ofOneRelay is how many of the first rows are of the same relay, all but where it has got another name.
func ofOneRelay(rows []archive.Row) int {
	for i := range rows {
		if rows[i].Relay != rows[0].Relay {
			return i
		}
	}
	return len(rows)
}

func (s *tcpSink) deliver(ctx context.Context, rows []archive.Row) error {
	if s.session != nil && (s.session.relay != rows[0].Relay || s.session.hasEnded()) {
		_ = s.Close()
	}
	if s.session == nil {
		var err error
		if s.session, err = s.dial(ctx, rows[0].Relay); err != nil {
			return err
		}
	}
	session := s.session
	defer context.AfterFunc(ctx, func() { _ = session.tcp.SetDeadline(time.Unix(1, 0)) })()
	if session.encoder == nil {
		session.encoder = newEncoder(session.relay, maxTCP, s.biflow)
		if err := session.encoder.types(time.Now(), session.send); err != nil {
			return err
		}
		if err := session.encoder.templates(time.Now(), session.send); err != nil {
			return err
		}
	}
	if err := session.encoder.rows(rows, time.Now, session.send); err != nil {
		return err
	}
	return session.acknowledged(ctx)
}

// Close ends the connection.
func (s *tcpSink) Close() error {
	if s.session == nil {
		return nil
	}
	err := s.session.conn.Close()
	s.session = nil
	return err
}

func (s *tcpSink) dial(ctx context.Context, relay string) (*tcpSession, error) {
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, unreached(err)
	}
	session := &tcpSession{relay: relay, tcp: conn.(*net.TCPConn), conn: conn, ended: make(chan struct{})}
	if s.tls != nil {
		config, err := tlsConfig(s.tls, s.name)
		if err == nil {
			secured := tls.Client(conn, config)
			if err = secured.HandshakeContext(ctx); err != nil {
				err = remedy.New(fmt.Errorf("agree on TLS with the collector: %w", err),
					"see whether ca, cert and key are those that the collector knows, and its port is that of TLS")
			}
			session.conn = secured
		}
		if err != nil {
			conn.Close()
			return nil, err
		}
	}
	// A collector sends nothing; what comes all the same is thrown away.
	go func() {
		_, session.endErr = io.Copy(io.Discard, session.conn)
		close(session.ended)
	}()
	return session, nil
}

func (s *tcpSession) send(message []byte) error {
	if _, err := s.conn.Write(message); err != nil {
		return endedEarly(err)
	}
	return nil
}

// hasEnded reports whether the collector has ended the connection.
func (s *tcpSession) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Pauses between two looks at the unacknowledged bytes: they double, so that a wait costs at most
// twice its time and a few looks.
const (
	firstLook = time.Millisecond
	lastLook  = 100 * time.Millisecond
)

// acknowledged waits until everything is.
func (s *tcpSession) acknowledged(ctx context.Context) error {
	raw, err := s.tcp.SyscallConn()
	if err != nil {
		return endedEarly(err)
	}
	look := time.NewTimer(firstLook)
	defer look.Stop()
	for pause := 2 * firstLook; ; pause = min(2*pause, lastLook) {
		ended := s.hasEnded() // before the look: a connection that was reset must not pass for acknowledged
		left := 0
		if err := raw.Control(func(fd uintptr) { left = socket.Unacknowledged(int(fd)) }); err != nil {
			return endedEarly(err)
		}
		switch {
		case ended && (left > 0 || s.endErr != nil):
			return endedEarly(s.endErr)
		case left == 0:
			return nil
		}
		select {
		case <-look.C:
		case <-s.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
		look.Reset(pause)
	}
}

// endedEarly says that a connection has ended before the collector had everything.
func endedEarly(err error) error {
	if err == nil {
		err = errors.New("it has not got everything")
	}
	return remedy.New(fmt.Errorf("the collector ended the connection: %w", cause(err)), "see the collector's log")
}

// unreached says why there is no way to a collector.
func unreached(err error) error {
	err = cause(err)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return remedy.New(errors.New("the collector's host refuses it: nothing listens at its port"), "start the collector, or correct its address and port")
	}
	return remedy.New(fmt.Errorf("reach the collector: %w", err), "see whether its address is right and its host up")
}

// cause leaves out the addresses, which the sink's name has.
func cause(err error) error {
	if e := (*net.OpError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// tlsConfig is that of RFC 7011, section 11.3: both sides show a certificate, if there is one here. The files
// are read for each connection, so that they can be changed.
func tlsConfig(t *archive.Target, name string) (*tls.Config, error) {
	c := &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}
	var err error
	if c.RootCAs, err = t.Authorities(); err != nil {
		return nil, err
	}
	if t.Certificate != "" || t.Key != "" {
		pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, remedy.New(fmt.Errorf("read certificate and key: %w", err), "name files with a PEM certificate and its key")
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
