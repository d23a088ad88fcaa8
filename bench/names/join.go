package main

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
)

// account is the history of one relay.
type account struct {
	relay   string
	peer    string // that its flows' records name; empty: none
	records []monitor.Record
}

// count counts things, and keeps the first one.
type count struct {
	n       int
	example string
}

func (c *count) add(format string, args ...any) {
	if c.n++; c.n == 1 {
		c.example = fmt.Sprintf(format, args...)
	}
}

// tally is what joining the histories by name gave.
type tally struct {
	flows    int
	expected int // flows that the last relay had for certain
	joined   int // of them, with one record in each relay, and at the target, of one name
	lost     count
	false    count // records and sights of a name that are of another client
	twice    count // a name or a client with two records in a relay, or two connections at the target
	nameless count
	strange  count // names in a relay that the first one does not have
	peers    count // records with a wrong peer
	broken   count // flows that ended otherwise than their kind, though no WAN was away
	names    map[*client]flow.Name
}

// joinAll joins the histories of relays behind one another, the first one first, by name, and holds
// them against what clients and target know.
func joinAll(clients []*client, seen map[token][]sight, all []account) (t tally) {
	t.names = map[*client]flow.Name{}
	byName := make([]map[flow.Name][]*monitor.Record, len(all))
	byClient := map[netip.AddrPort][]*monitor.Record{}
	for i, a := range all {
		byName[i] = map[flow.Name][]*monitor.Record{}
		for k := range a.records {
			r := &a.records[k]
			switch {
			case r.Name.IsZero():
				t.nameless.add("%s: flow %d of %v", a.relay, r.Flow, r.Client)
				continue
			case i > 0 && byName[0][r.Name] == nil:
				t.strange.add("%s: %v of %v", a.relay, r.Name, r.Client)
			}
			if byName[i][r.Name] = append(byName[i][r.Name], r); len(byName[i][r.Name]) > 1 {
				t.twice.add("%s: %v of %v and %v", a.relay, r.Name, byName[i][r.Name][0].Client, r.Client)
			}
			if i == 0 {
				byClient[r.Client.AddrPort] = append(byClient[r.Client.AddrPort], r)
			}
		}
	}
	for _, c := range clients {
		t.one(c, seen[c.token], all, byName, byClient[c.address])
	}
	return t
}

// one joins what there is of one client's flow. near are its records in the first relay.
func (t *tally) one(c *client, sights []sight, all []account, byName []map[flow.Name][]*monitor.Record, near []*monitor.Record) {
	t.flows++
	if c.broken != nil && !c.mayBreak {
		t.broken.add("%c from %v: %v", c.kind, c.address, c.broken)
	}
	certain := len(sights) > 0 || c.kind == refused && !c.mayBreak
	if certain {
		t.expected++
	}
	if len(near) != 1 {
		if len(near) > 1 {
			t.twice.add("%s: %d records of %v", all[0].relay, len(near), c.address)
		} else {
			t.lost.add("%s: none of %v (%c)", all[0].relay, c.address, c.kind)
		}
		return
	}
	name, whole := near[0].Name, true
	t.names[c] = name
	for i, a := range all {
		records := byName[i][name]
		if len(records) == 0 && certain {
			t.lost.add("%s: %v of %v (%c)", a.relay, name, c.address, c.kind)
		}
		whole = whole && len(records) == 1
		for _, r := range records {
			if r.Client.AddrPort != c.address {
				t.false.add("%s: %v is of %v, and in %s of %v", a.relay, name, r.Client, all[0].relay, c.address)
				whole = false
			}
			if certain && r.Peer != a.peer {
				t.peers.add("%s: %v has the peer %q, want %q", a.relay, name, r.Peer, a.peer)
			}
		}
	}
	for _, s := range sights {
		if s.name != name || s.client != c.address {
			t.false.add("target: %v of %v, and in %s %v of %v", s.name, s.client, all[0].relay, name, c.address)
			whole = false
		}
	}
	if len(sights) > 1 {
		t.twice.add("target: %d connections of %v", len(sights), c.address)
		whole = false
	}
	if certain && whole {
		t.joined++
	}
}

// note waits until all flows have ended, joins the histories, and notes what that gave. Each of twins
// is two clients with one identifier.
func (w *world) note(ctx context.Context, twins [][2]*client, note func(kit.Measured)) error {
	if err := w.idle(ctx); err != nil {
		return w.errorf("%w", err)
	}
	for _, s := range w.line {
		if _, err := s.Stop(ctx); err != nil { // its history is whole
			return err
		}
	}
	var all []account
	for i, s := range w.line {
		a := account{relay: s.Name, peer: w.peerOf(i)}
		var err error
		if a.records, err = recordsOf(ctx, s.file); err != nil {
			return w.errorf("history of %s: %w", s.Name, err)
		}
		all = append(all, a)
	}
	t := joinAll(w.clients, w.target.seen, all)
	t.figures(note)
	if twins != nil {
		noteTwins(twins, t.names, note)
		return nil
	}
	w.noteKinds(note)
	if w.way != wayHAProxy {
		return nil
	}
	lines, err := w.haproxyLines(ctx)
	if err == nil {
		noteHAProxy(w.clients, lines, t.names, note)
	}
	return err
}

// peerOf is the peer of the records of the i-th relay: a hub has two.
func (w *world) peerOf(i int) string {
	var peers []string
	for k, s := range w.line {
		if w.way != wayUnpaired && (k == i-1 || k == i+1) {
			peers = append(peers, s.site)
		}
	}
	return strings.Join(peers, " > ")
}

// recordsOf reads all records of a history.
func recordsOf(ctx context.Context, file string) (all []monitor.Record, err error) {
	r, err := history.OpenReader(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	err = r.Walk(ctx, history.Query{}, func(r *monitor.Record) error {
		all = append(all, *r)
		return nil
	})
	return all, err
}

// none is a figure that must be 0 in every run.
func none(name string, c count) kit.Measured {
	return kit.Measured{Name: name, Value: float64(c.n), Bound: kit.AtMost(0), Exact: true, Example: c.example}
}

// some is a figure without which a run proves nothing.
func some(name string, n int) kit.Measured {
	return kit.Measured{Name: name, Value: float64(n), Bound: kit.AtLeast(1), Exact: true}
}

func (t *tally) figures(note func(kit.Measured)) {
	note(some("flows", t.flows))
	note(some("of them at the last relay", t.expected))
	note(kit.Measured{Name: "of these joined by name", Unit: "%", Value: 100 * float64(t.joined) / float64(t.expected), Bound: kit.AtLeast(100), Exact: true})
	note(none("records missing", t.lost))
	note(none("false joins", t.false))
	note(none("duplicates", t.twice))
	note(none("records without a name", t.nameless))
	note(none("names that the first relay lacks", t.strange))
	note(none("records with a wrong peer", t.peers))
	note(none("flows broken without a cause", t.broken))
}

// noteKinds notes how many flows ended in which way.
func (w *world) noteKinds(note func(kit.Measured)) {
	byKind, broken := map[kind]int{}, 0
	for _, c := range w.clients {
		byKind[c.kind]++
		if c.broken != nil {
			broken++
		}
	}
	note(some("refused", byKind[refused]))
	note(some("reset by the client", byKind[clientResets]))
	note(some("reset by the target", byKind[targetResets]))
	note(some("cut with a WAN", byKind[cut]))
	note(kit.Measured{Name: "begun meanwhile and broken", Value: float64(broken)})
	note(some("through an upgrade", int(w.upgraded)))
}

// noteTwins notes whether of two clients with one identifier one alone has its name.
func noteTwins(twins [][2]*client, names map[*client]flow.Name, note func(kit.Measured)) {
	var wrong count
	for _, both := range twins {
		given, a, b := flow.NameOf(both[0].id), names[both[0]], names[both[1]]
		if (a == given) == (b == given) || a == b {
			wrong.add("%q is %v: %v of %v and %v of %v", both[0].id, given, a, both[0].address, b, both[1].address)
		}
	}
	note(some("pairs of clients with one identifier", len(twins)))
	note(none("of these not one alone has its name", wrong))
}

// haproxyLines waits until HAProxy has logged every connection, and returns their identifiers by
// client.
func (w *world) haproxyLines(ctx context.Context) (map[netip.AddrPort]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("HAProxy has not logged all connections after %v", patience))
	defer cancel()
	for {
		lines, err := readLog(w.haproxyLog())
		if err != nil || len(lines) >= len(w.clients) {
			return lines, err
		}
		if kit.Pause(ctx, 20*time.Millisecond) != nil {
			return nil, w.errorf("%w: %d of %d", context.Cause(ctx), len(lines), len(w.clients))
		}
	}
}

// readLog reads the lines that HAProxy's configuration makes.
func readLog(file string) (map[netip.AddrPort]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := map[netip.AddrPort]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		word := strings.Fields(s.Text())
		if len(word) != 4 || word[0] != "flow" {
			continue
		}
		at, err := netip.ParseAddrPort(word[2] + ":" + word[3])
		if err != nil {
			return nil, fmt.Errorf("line %q of HAProxy's log: %w", s.Text(), err)
		}
		lines[at] = word[1]
	}
	return lines, nil
}

// noteHAProxy holds the names against HAProxy's log.
func noteHAProxy(clients []*client, lines map[netip.AddrPort]string, names map[*client]flow.Name, note func(kit.Measured)) {
	var wrong count
	for _, c := range clients {
		if said := lines[c.address]; said != names[c].String() {
			wrong.add("%v: %q, and in the first relay %v", c.address, said, names[c])
		}
	}
	note(some("lines of HAProxy's log", len(lines)))
	note(none("names that HAProxy's log has otherwise", wrong))
}
