package daemon

import (
	"errors"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/carry/intercept"
	"longhaul/internal/carry/intercept/hold"
	"longhaul/internal/carry/relay"
	"longhaul/internal/sys/loglimit"
)

// mirror holds the clients' SYNs of tunnels with refuse: mirror, and has the relay dial
// their targets.
type mirror struct {
	relay  *relay.Relay
	holder *hold.Holder // nil: no tunnel mirrors
	ports  map[string]holdPorts

	lines *loglimit.Limiter
}

type holdPorts struct{ four, six uint16 }

// follow holds the SYNs of all tunnels that mirror, beside those that it holds already.
func (m *mirror) follow(tunnels []intercept.Tunnel) error {
	for _, t := range tunnels {
		if _, holds := m.ports[t.Name]; holds || !t.Mirror {
			continue
		}
		if m.holder == nil {
			h, err := hold.New(m.opened, m.failed)
			if err != nil {
				return err
			}
			m.holder, m.ports = h, map[string]holdPorts{}
		}
		var p holdPorts
		for _, at := range transparentListens(t.To) {
			port, err := m.holder.Listen(hold.Place{Tunnel: t.Name, Interface: t.Interface, Six: at.Addr().Is6()})
			if err != nil {
				m.holder.Forget(t.Name)
				return err
			}
			if at.Addr().Is6() {
				p.six = port
			} else {
				p.four = port
			}
		}
		m.ports[t.Name] = p
	}
	return nil
}

// forget closes the listeners of tunnels that no longer mirror: their SYNs pass.
func (m *mirror) forget(tunnels []intercept.Tunnel) {
	for name := range m.ports {
		if !slices.ContainsFunc(tunnels, func(t intercept.Tunnel) bool { return t.Mirror && t.Name == name }) {
			m.holder.Forget(name)
			delete(m.ports, name)
		}
	}
}

// opened has the relay dial the target of a SYN.
func (m *mirror) opened(s hold.SYN) {
	m.relay.OpenHeld(relay.HeldSYN{Tunnel: s.Tunnel, From: s.From, To: s.To, Sequence: s.Sequence(), Answer: func(r *flow.Refusal) {
		if as, ok := answerTo(r); ok {
			m.holder.Answer(s, as)
		}
	}})
}

// failed logs an error now and then: a client sends its SYN again and again.
func (m *mirror) failed(err error) {
	m.lines.Log(slog.LevelError, "cannot answer a client whose SYN is held", nil, slog.Any("error", err))
}

// close ends it, after the relay.
func (m *mirror) close() {
	if m.holder != nil {
		m.holder.Close()
		m.holder = nil
	}
}

// answerTo is what a client gets; nothing if its next SYN may fare better.
func answerTo(r *flow.Refusal) (as hold.Answer, ok bool) {
	if r == nil {
		return hold.Connect, true
	}
	switch r.Reason {
	case flow.EndNoLocalPort, flow.EndNoResources, flow.EndDrain:
		return 0, false
	case flow.EndTargetUnreached:
		var errno unix.Errno
		errors.As(r.Err, &errno)
		switch errno {
		case unix.ENETUNREACH, unix.ENETDOWN:
			return hold.NetUnreachable, true
		case unix.EHOSTUNREACH, unix.EHOSTDOWN:
			return hold.HostUnreachable, true
		case unix.EACCES:
			return hold.AdminProhibited, true
		case unix.ETIMEDOUT, unix.EPERM: // EPERM: a rule of this host drops the relay's SYN
			return 0, false
		}
	}
	return hold.Reset, true
}
