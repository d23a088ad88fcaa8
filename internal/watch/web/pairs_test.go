package web

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

// A session's row has its state and its problem in words.
func TestPairRows(t *testing.T) {
	for _, one := range []struct {
		session      flow.Session
		state        string
		says, remedy bool
	}{
		{session: flow.Session{Up: true}, state: "up"},
		{session: flow.Session{Up: true, Draining: true}, state: "draining"},
		{session: flow.Session{}, state: "connecting"},
		{session: flow.Session{Instance: "1"}, state: "lost"},
		{session: flow.Session{Instance: "1", Problem: flow.PairPathDown}, state: "lost", says: true, remedy: true},
		{session: flow.Session{Instance: "1", Problem: flow.PairKeyUnknown}, state: "key-unknown", says: true, remedy: true},
		{session: flow.Session{Problem: flow.PairVersion}, state: "version", says: true, remedy: true},
		{session: flow.Session{Problem: flow.PairUnpaired}, state: "unpaired", says: true, remedy: true},
		{session: flow.Session{Problem: flow.PairDenied}, state: "denied", says: true, remedy: true},
		{session: flow.Session{Problem: flow.PairDraining}, state: "draining", says: true},
	} {
		one.session.Tunnel, one.session.Peer = "t", "site-b"
		s := &monitor.Snapshot{Pairs: &flow.Pairs{Sessions: []flow.Session{one.session, {Tunnel: "u"}}}}
		rows := pairRows(s, "t")
		if len(rows) != 1 || len(pairRows(s, "")) != 2 {
			t.Fatalf("%d rows of one tunnel, %d of all", len(rows), len(pairRows(s, "")))
		}
		if r := rows[0]; r.State != one.state || (r.ProblemText != "") != one.says || (r.Remedy != "") != one.remedy {
			t.Errorf("%+v: state %q, text %q, remedy %q", one.session, r.State, r.ProblemText, r.Remedy)
		}
	}
	if rows := pairRows(&monitor.Snapshot{}, ""); rows != nil {
		t.Errorf("rows of a relay without pairs: %v", rows)
	}
}

func TestPairAlerts(t *testing.T) {
	now := time.Now()
	down := func(end flow.PairRole, age time.Duration, problem flow.PairProblem, instance string, waiting int) monitor.Pair {
		return monitor.Pair{Session: flow.Session{Tunnel: "files", Peer: "site-b", End: end, Since: now.Add(-age), Problem: problem,
			Instance: instance, FlowsResuming: waiting}}
	}
	up := monitor.Pair{Session: flow.Session{Tunnel: "files", Peer: "site-b", Up: true}}
	for name, one := range map[string]struct {
		pairs flow.Pairs
		total monitor.Pair
		want  []string
	}{
		"up":     {total: up},
		"outage": {total: down(flow.NearEnd, time.Minute, flow.PairPathDown, "1", 3)}, // an alert of its tunnel
		"outage seen from the far end": {total: down(flow.FarEnd, time.Minute, flow.PairPathDown, "1", 3),
			want: []string{"warning Tunnel files has no session with site-b: site-b cannot be reached. Its flows wait for one"}},
		"far end, nobody waits": {total: down(flow.FarEnd, time.Hour, flow.PairPathDown, "1", 0)},
		"just now":              {total: down(flow.FarEnd, time.Second, flow.PairPathDown, "1", 3)},
		"store full": {total: up, pairs: flow.Pairs{RetainedBytes: 95, RetainedLimitBytes: 100},
			want: []string{"warning Pairs hold nine tenths of the unacknowledged data that they may: senders are slowed down"}},
		"store without a bound": {total: up, pairs: flow.Pairs{RetainedBytes: 95}},
		"a path is down": {total: up, pairs: flow.Pairs{Sessions: []flow.Session{{Tunnel: "files", Peer: "site-b", Up: true, Paths: []flow.Path{
			{Path: "wan0", Up: true, Since: now.Add(-time.Hour)},
			{Path: "lte0", Since: now.Add(-time.Minute), Error: "network is unreachable"},
			{Path: "lte1", Since: now.Add(-time.Second), Error: "network is unreachable"},
			{Path: "sat0"}, // connecting
		}}}},
			want: []string{"warning Tunnel files reaches site-b over its other paths only: lte0 is down: network is unreachable"}},
		"strangers": {total: up, pairs: flow.Pairs{Strangers: map[flow.PairProblem]int64{flow.PairKeyUnknown: 2, flow.PairUnpaired: 9}},
			want: []string{"notice 2 connections from other relays since the start became part of no pair: key-unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			pairAlerts(&monitor.Snapshot{At: now, Pairs: &one.pairs, PairTotals: []monitor.Pair{one.total}},
				func(level, _, format string, args ...any) { got = append(got, level+" "+fmt.Sprintf(format, args...)) })
			if !slices.Equal(got, one.want) {
				t.Errorf("got %q\nwant %q", got, one.want)
			}
		})
	}
}
