package identity

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/display"
)

// List is everything in a store but private keys and secrets.
type List struct {
	Directory   string             `json:"directory"`
	Key         string             `json:"key"`      // in use; empty: none yet
	NextKey     string             `json:"next_key"` // of a rotation; empty: there is none
	Peers       []ListedPeer       `json:"peers"`
	Trusted     []Trusted          `json:"trusted"` // by certificates
	Invitations []ListedInvitation `json:"invitations"`
}

// ListedPeer is a peer in a [List].
type ListedPeer struct {
	Name       string      `json:"name"`
	Keys       []PublicKey `json:"keys"` // the newest first
	Since      time.Time   `json:"since"`
	HasNextKey bool        `json:"has_next_key"`
}

// ListedInvitation is an invitation in a [List] that can still be used.
type ListedInvitation struct {
	Name    string    `json:"name"`
	Expires time.Time `json:"expires"`
}

// List reads everything.
func (s *Store) List() (List, error) {
	l := List{Directory: s.dir, Peers: []ListedPeer{}, Trusted: []Trusted{}, Invitations: []ListedInvitation{}}
	c, err := s.load()
	if err == nil {
		err = s.Problem()
	}
	if err != nil {
		return l, err
	}
	var next PublicKey
	if len(c.keys) > 0 {
		l.Key = c.keys[c.inUse()].public().String()
	}
	if len(c.keys) == MaxKeys {
		next = c.keys[0].public()
		l.NextKey = next.String()
	}
	for _, p := range c.peers {
		l.Peers = append(l.Peers, ListedPeer{p.Name, slices.Clone(p.Keys), p.Since, !next.IsZero() && p.Holds == next})
	}
	trusted, err := s.trusted()
	if err != nil {
		return l, err
	}
	l.Trusted = append(l.Trusted, trusted.merged()...)
	l.Invitations = c.invitations.pending(time.Now())
	return l, nil
}

// Wanted returns the peers as a declared list that [Store.Apply] finds unchanged.
func (l *List) Wanted() []Wanted {
	all := make([]Wanted, len(l.Peers))
	for i, p := range l.Peers {
		all[i] = Wanted{p.Name, p.Keys}
	}
	return all
}

// WriteText writes the list for people. The hosts of a site stand below it.
func (l *List) WriteText(w io.Writer, now time.Time) error {
	switch {
	case len(l.Peers) == 0 && len(l.Trusted) == 0:
		fmt.Fprintln(w, "no peer: longhaul pair invite NAME begins a pairing")
	case len(l.Peers) > 0:
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "PEER\tKEY\tSINCE\tNOTE")
		for i, p := range l.Peers {
			if site := flow.SiteOf(p.Name); site != "" {
				if i == 0 || flow.SiteOf(l.Peers[i-1].Name) != site {
					hosts := slices.IndexFunc(l.Peers[i:], func(p ListedPeer) bool { return flow.SiteOf(p.Name) != site })
					if hosts < 0 {
						hosts = len(l.Peers) - i
					}
					fmt.Fprintf(table, "%s\t\t\t%s\n", site, display.Plural(hosts, "host"))
				}
				p.Name = "  " + p.Name
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", p.Name, p.Keys[0].Short(), p.Since.Local().Format("2006-01-02 15:04"), l.note(p))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	for _, t := range l.Trusted {
		state := "not seen yet"
		switch {
		case t.Until.IsZero():
		case t.Until.Before(now):
			state = "its certificate expired at " + t.Until.Local().Format("2006-01-02 15:04")
		default:
			state = "its certificate ends at " + t.Until.Local().Format("2006-01-02 15:04")
		}
		fmt.Fprintf(w, "trusted: %s, as %s, %s\n", t.Name, t.SAN, state)
	}
	for _, i := range l.Invitations {
		left := max(time.Minute, i.Expires.Sub(now).Round(time.Minute))
		fmt.Fprintf(w, "invited: %s, for %d min\n", i.Name, int(left.Minutes()))
	}
	if l.NextKey != "" {
		fmt.Fprintln(w, "a rotation goes on: the old key is dropped once every peer has the new one")
	}
	return nil
}

// note is the state of a peer's keys.
func (l *List) note(p ListedPeer) string {
	switch {
	case len(p.Keys) == MaxKeys:
		return "old key still accepted"
	case l.NextKey != "" && !p.HasNextKey:
		return "lacks the new key"
	case l.NextKey != "":
		return "has the new key"
	}
	return ""
}
