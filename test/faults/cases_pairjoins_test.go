package faults

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/preface"
	"longhaul/test/nettest"
)

// verifiers returns the public halves of the secrets of a host's invitations.
func verifiers(t *testing.T, keys string) (all [][]byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(keys, "invitations"))
	nettest.Must(t, err)
	for _, found := range regexp.MustCompile(`(?m)^longhaul-pair-verifier-1:(\S+) `).FindAllSubmatch(text, -1) {
		b, err := base64.RawURLEncoding.DecodeString(string(found[1]))
		nettest.Must(t, err)
		all = append(all, b[:32])
	}
	return all
}

// expectStranger reads the reset of a connection that nobody takes.
func expectStranger(t *testing.T, what string, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: got %d bytes, %v; want a reset", what, n, err)
	}
}

// Case 63: joins that say nothing behind their preface. Without an invitation the far
// relay resets them. With one they hold 64 connections at most, write hardly any line,
// and keep no host of another source from joining. A preface that comes again is reset.
func TestCase63SilentJoins(t *testing.T) {
	t.Parallel()
	p, _ := loopbackPair(t)
	p.startFar()
	store := identity.New(p.farKeys)
	key, _, _, err := store.Key()
	nettest.Must(t, err)
	byKey := preface.Preface{Kind: preface.Join}.Append(nil, key[:])
	expectStranger(t, "a join without an invitation", p.stranger(byKey))

	invite := func(name string) *identity.Invitation {
		inv, err := store.Invite(name, "far", []string{p.wan})
		nettest.Must(t, err)
		return inv
	}
	join := func(inv *identity.Invitation) error {
		_, err := identity.New(filepath.Join(t.TempDir(), "keys")).Join(context.Background(), inv, "")
		return err
	}
	first, second := invite("site-a"), invite("site-b")
	silent := preface.JoinKey(verifiers(t, p.farKeys)[1]) // of the second
	nettest.Eventually(t, patience, func() bool { return join(first) == nil },
		func() string { return "the relay does not see the invitations" })
	expectStranger(t, "a join for the host's key beside an invitation", p.stranger(byKey))
	again := preface.Preface{Kind: preface.Join}.AppendFor(nil, silent)
	taken := p.stranger(again)
	nettest.Eventually(t, patience, func() bool {
		c := p.stranger(again)
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, syscall.ECONNRESET)
	}, func() string { return "a preface that comes again is not reset" })

	pid := p.far.cmd.Process.Pid
	before := descriptors(t, pid)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 79, 0, 9)}}
	const joins, places = 200, 64
	for range joins {
		c, err := dialer.Dial("tcp", p.wan)
		nettest.Must(t, err)
		defer c.Close()
		_, err = c.Write(preface.Preface{Kind: preface.Join}.AppendFor(nil, silent))
		nettest.Must(t, err)
	}
	nettest.Eventually(t, patience, func() bool { return descriptors(t, pid) <= before+places },
		func() string { return fmt.Sprintf("%d descriptors, %d before", descriptors(t, pid), before) })
	if err := join(second); err != nil {
		t.Errorf("an honest join beside silent ones: %v", err)
	}
	taken.Close()
	p.far.expectLog(`msg="paired with a host that answered an invitation" peer=site-b`)
	p.far.expectLog(`msg="an answer to an invitation was refused"`)
	if n := p.far.log.count(`msg="an answer to an invitation was refused"`); n > 3 {
		t.Errorf("%d lines about joins that were refused", n)
	}
}
