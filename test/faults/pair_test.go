package faults

import (
	"cmp"
	"fmt"
	"path/filepath"
	"testing"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/pair/identity"
	"longhaul/lab/hosts"
	"longhaul/test/nettest"
)

// pairOf are two paired relays: near has the clients, far the target.
type pairOf struct {
	t                  *testing.T
	near, far          *daemon
	nearHost, farHost  *hosts.Host
	supervision        supervision
	nearKeys, farKeys  string // directories
	listen, wan        string // where the near relay and the far one listen
	forward            string // where the near relay looks for the far one
	target             string
	moreNear, moreFar  string // settings of the processes
	tunnelNear         string // of the near tunnel beside the peer, such as ", resume: 5s"
	settings           string // of both tunnels
	settingsNear       string // of the near tunnel alone
	settingsFar        string // of the far one
	peerName           string // of the near relay in the far tunnel; "": near
	withoutWaitForPair bool
	// nearProgram and farProgram are other programs than the one under test.
	nearProgram, farProgram string
}

// pairKeys makes the keys of two hosts that know each other, in directories of their
// own unless they have some.
func (p *pairOf) pairKeys() {
	p.t.Helper()
	p.nearKeys = cmp.Or(p.nearKeys, filepath.Join(p.t.TempDir(), "near"))
	p.farKeys = cmp.Or(p.farKeys, filepath.Join(p.t.TempDir(), "far"))
	near, far := identity.New(p.nearKeys), identity.New(p.farKeys)
	nearKey, _, _, err := near.Key()
	nettest.Must(p.t, err)
	farKey, _, _, err := far.Key()
	nettest.Must(p.t, err)
	_, err = near.Pin("far", farKey)
	nettest.Must(p.t, err)
	_, err = far.Pin("near", nearKey)
	nettest.Must(p.t, err)
}

// start starts both relays and waits until the pair stands.
func (p *pairOf) start() *pairOf {
	p.t.Helper()
	p.startFar()
	p.startNear()
	return p
}

func (p *pairOf) startFar() {
	p.t.Helper()
	if p.nearKeys == "" {
		p.pairKeys()
	}
	p.far = startProgram(p.t, cmp.Or(p.farProgram, nettest.Longhaul(p.t)), p.farHost, p.supervision, p.farConfig())
}

// startNear starts the near relay and waits until the pair stands, unless told not to.
func (p *pairOf) startNear() {
	p.t.Helper()
	p.forward = cmp.Or(p.forward, p.wan)
	p.near = startProgram(p.t, cmp.Or(p.nearProgram, nettest.Longhaul(p.t)), p.nearHost, p.supervision, p.nearConfig())
	if !p.withoutWaitForPair {
		p.expectUp()
	}
}

func (p *pairOf) nearConfig() string {
	return fmt.Sprintf("control_socket: SOCKET\npair_keys: %s\n%stunnels:\n  - name: main\n    listen: %q\n    forward: %q\n    pair: {peer: far%s}\n%s",
		p.nearKeys, p.moreNear, p.listen, p.forward, p.tunnelNear, p.settings+p.settingsNear)
}

func (p *pairOf) farConfig() string {
	return fmt.Sprintf("control_socket: SOCKET\npair_keys: %s\n%stunnels:\n  - name: main\n    listen: %q\n    forward: %q\n    pair_from: %s\n%s",
		p.farKeys, p.moreFar, p.wan, p.target, cmp.Or(p.peerName, "near"), p.settings+p.settingsFar)
}

// session is the session of a relay's tunnel; of several, one that stands.
func (d *daemon) session() (s flow.Session) {
	now := d.status().Pairs
	if now == nil {
		return s
	}
	for _, one := range now.Sessions {
		if s.Peer == "" || one.Up && !s.Up {
			s = one
		}
	}
	return s
}

// expectUp waits until the pair stands with its warm lanes.
func (p *pairOf) expectUp() {
	p.t.Helper()
	nettest.Eventually(p.t, patience, func() bool {
		near, far := p.near.session(), p.far.session()
		return near.Up && far.Up && near.LanesWarm >= warmLanes && far.LanesWarm >= near.LanesWarm
	}, func() string {
		return fmt.Sprintf("the pair does not stand: %+v, %+v", p.near.session(), p.far.session())
	})
}

const warmLanes = 4 // unless configured
