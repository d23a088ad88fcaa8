package zonetransfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"longhaul/lab"
	"longhaul/lab/hosts"
)

// dnsPort is where name servers listen.
const dnsPort = 53

// soaSerial asks the name server at addr, from the host itself, for the serial
// number of a zone (RFC 1035). ok is false while it does not serve the zone.
func soaSerial(host *hosts.Host, addr netip.Addr, zone dnsmessage.Name) (serial uint32, ok bool, err error) {
	const patience = time.Second
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 1})
	err = errors.Join(b.StartQuestions(), b.Question(dnsmessage.Question{Name: zone, Type: dnsmessage.TypeSOA, Class: dnsmessage.ClassINET}))
	if err != nil {
		return 0, false, err
	}
	query, err := b.Finish()
	if err != nil {
		return 0, false, err
	}
	var conn net.Conn
	err = host.Do(func() (err error) {
		conn, err = net.Dial("udp", netip.AddrPortFrom(addr, dnsPort).String())
		return err
	})
	if err != nil {
		return 0, false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, false, err
	}
	answer := make([]byte, 4096)
	n := 0
	if _, err = conn.Write(query); err == nil {
		n, err = conn.Read(answer)
	}
	if err != nil { // it does not listen yet, or is busy
		return 0, false, nil
	}
	return parseSerial(answer[:n])
}

// parseSerial reads the serial number from an answer to a question for a SOA
// record. ok is false if the server has none.
func parseSerial(answer []byte) (serial uint32, ok bool, err error) {
	var p dnsmessage.Parser
	header, err := p.Start(answer)
	if err == nil {
		err = p.SkipAllQuestions()
	}
	if err != nil {
		return 0, false, fmt.Errorf("the name server's answer makes no sense: %w", err)
	}
	if !header.Response || header.RCode != dnsmessage.RCodeSuccess {
		return 0, false, nil
	}
	for {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, fmt.Errorf("the name server's answer makes no sense: %w", err)
		}
		if h.Type != dnsmessage.TypeSOA {
			if err := p.SkipAnswer(); err != nil {
				return 0, false, fmt.Errorf("the name server's answer makes no sense: %w", err)
			}
			continue
		}
		soa, err := p.SOAResource()
		if err != nil {
			return 0, false, fmt.Errorf("the name server's answer makes no sense: %w", err)
		}
		return soa.Serial, true, nil
	}
}

// addressChange gives a name another address.
type addressChange struct {
	name    dnsmessage.Name
	address [4]byte
}

// updateMessage replaces the addresses of names of a zone, as a dynamic update
// (RFC 2136): per name, the old records are deleted and one is added.
func updateMessage(zone dnsmessage.Name, changes []addressChange) ([]byte, error) {
	const (
		opUpdate = 5
		classANY = 255
	)
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 2, OpCode: opUpdate})
	b.EnableCompression()
	// The sections of an update are those of a query under other names: the
	// zone is the question, and the changes are its authorities.
	err := errors.Join(
		b.StartQuestions(),
		b.Question(dnsmessage.Question{Name: zone, Type: dnsmessage.TypeSOA, Class: dnsmessage.ClassINET}),
		b.StartAuthorities())
	for _, c := range changes {
		err = errors.Join(err,
			b.UnknownResource(dnsmessage.ResourceHeader{Name: c.name, Class: classANY}, dnsmessage.UnknownResource{Type: dnsmessage.TypeA}),
			b.AResource(dnsmessage.ResourceHeader{Name: c.name, Class: dnsmessage.ClassINET, TTL: zoneTTL}, dnsmessage.AResource{A: c.address}))
	}
	if err != nil {
		return nil, fmt.Errorf("write a dynamic update: %w", err)
	}
	return b.Finish()
}

// dynamicUpdate sends an update to the name server at addr, from the host
// itself, and returns once it is done.
func dynamicUpdate(ctx context.Context, host *hosts.Host, addr netip.Addr, message []byte) error {
	var conn net.Conn
	err := host.Do(func() (err error) {
		var dialer net.Dialer
		dialer.SetMultipathTCP(false)
		conn, err = dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, dnsPort).String())
		return err
	})
	if err != nil {
		return fmt.Errorf("update the zone: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)); err != nil {
		return fmt.Errorf("update the zone: %w", lab.CauseOr(ctx, err))
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return fmt.Errorf("update the zone: %w", lab.CauseOr(ctx, err))
	}
	answer := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("update the zone: %w", lab.CauseOr(ctx, err))
	}
	var p dnsmessage.Parser
	header, err := p.Start(answer)
	if err != nil {
		return fmt.Errorf("the name server's answer makes no sense: %w", err)
	}
	if header.RCode != dnsmessage.RCodeSuccess {
		return fmt.Errorf("the name server refuses the update: %v", header.RCode)
	}
	return nil
}

// awaitSerial polls a host's name server until it serves a zone with a serial
// number that is new, and returns when that was.
func awaitSerial(ctx context.Context, host *hosts.Host, addr netip.Addr, zone dnsmessage.Name, isNew func(uint32) bool, ended <-chan struct{}) (uint32, time.Time, error) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		serial, ok, err := soaSerial(host, addr, zone)
		if err != nil {
			return 0, time.Time{}, err
		}
		if ok && isNew(serial) {
			return serial, time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return 0, time.Time{}, context.Cause(ctx)
		case <-ended:
			return 0, time.Time{}, errors.New("the name server ended")
		case <-poll.C:
		}
	}
}

// zoneTTL is that of every record that the experiment makes, in seconds.
const zoneTTL = 3600

// firstDifference is where the records of two zone files that a server dumped
// begin to differ, in words; empty if they are the same. Comments, such as the
// time of the dump, do not count.
func firstDifference(a, b string) (string, error) {
	left, err := recordLines(a)
	if err != nil {
		return "", err
	}
	right, err := recordLines(b)
	if err != nil {
		return "", err
	}
	if len(left) == 0 {
		return "there are no records", nil
	}
	for i, line := range left {
		if i == len(right) {
			return fmt.Sprintf("the other lacks %.100q", line), nil
		}
		if !bytes.Equal(line, right[i]) {
			return fmt.Sprintf("record %d is %.100q, the other's %.100q", i+1, line, right[i]), nil
		}
	}
	if len(right) > len(left) {
		return fmt.Sprintf("the other has %.100q too", right[len(left)]), nil
	}
	return "", nil
}

func recordLines(file string) ([][]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(bytes.Split(data, []byte("\n")), func(line []byte) bool {
		return len(line) == 0 || line[0] == ';'
	}), nil
}
