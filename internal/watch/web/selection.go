package web

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
)

const (
	usualPage = 30
	maxPage   = 100
)

// selection is the filter, order and page of the shown flows.
type selection struct {
	Tunnel string
	Cause  doctor.Cause
	State  string
	Text   string    // in the flow's addresses, hop, tunnel, name or peer
	Name   flow.Name // Text as a name; zero: it is none

	order      string
	descending bool
	Page, Size int // pages count from 1
}

// flowOrders compares two flows by a column.
var flowOrders = map[string]func(a, b *monitor.Flow) int{
	"rate":   func(a, b *monitor.Flow) int { return cmp.Compare(a.UpBps+a.DownBps, b.UpBps+b.DownBps) },
	"up":     func(a, b *monitor.Flow) int { return cmp.Compare(a.UpBps, b.UpBps) },
	"down":   func(a, b *monitor.Flow) int { return cmp.Compare(a.DownBps, b.DownBps) },
	"bytes":  func(a, b *monitor.Flow) int { return cmp.Compare(a.BytesUp+a.BytesDown, b.BytesUp+b.BytesDown) },
	"age":    func(a, b *monitor.Flow) int { return b.Start.Compare(a.Start) },
	"rtt":    func(a, b *monitor.Flow) int { return cmp.Compare(longestRTT(a), longestRTT(b)) },
	"resent": func(a, b *monitor.Flow) int { return cmp.Compare(resentShare(a), resentShare(b)) },
	"tunnel": func(a, b *monitor.Flow) int { return cmp.Compare(a.Tunnel, b.Tunnel) },
	"client": func(a, b *monitor.Flow) int { return a.Client.Compare(b.Client.AddrPort) },
	"target": func(a, b *monitor.Flow) int { return a.Target.Compare(b.Target.AddrPort) },
	"cause":  func(a, b *monitor.Flow) int { return cmp.Compare(a.Cause, b.Cause) },
	"state":  func(a, b *monitor.Flow) int { return cmp.Compare(a.State, b.State) },
}

func longestRTT(f *monitor.Flow) time.Duration {
	return time.Duration(max(f.Legs[0].RTT, f.Legs[1].RTT))
}

// resentShare is the share of retransmitted data on the worse leg; negative:
// unknown.
func resentShare(f *monitor.Flow) float64 {
	worst := -1.0
	for _, l := range f.Legs {
		if l.BytesSent > 0 && l.BytesRetransmitted >= 0 {
			worst = max(worst, float64(l.BytesRetransmitted)/float64(l.BytesSent))
		}
	}
	return worst
}

// parseSelection parses sort, page, size, tunnel, cause, state and q.
func parseSelection(q url.Values) (selection, error) {
	s := selection{
		Tunnel: q.Get("tunnel"), Cause: doctor.Cause(q.Get("cause")), State: q.Get("state"),
		Text: strings.ToLower(strings.TrimSpace(q.Get("q"))), order: "rate", descending: true, Page: 1, Size: usualPage,
	}
	s.Name, _ = flow.ParseName(s.Text)
	if text := q.Get("sort"); text != "" {
		s.order, s.descending = strings.CutPrefix(text, "-")
		if flowOrders[s.order] == nil {
			return s, wrong("there is no column " + strconv.Quote(s.order) + " to sort by")
		}
	}
	for _, n := range []struct {
		name string
		to   *int
		max  int
	}{{"page", &s.Page, 1 << 20}, {"size", &s.Size, maxPage}} {
		text := q.Get(n.name)
		if text == "" {
			continue
		}
		v, err := strconv.Atoi(text)
		if err != nil || v < 1 || v > n.max {
			return s, wrong(n.name + " is a number from 1 to " + strconv.Itoa(n.max))
		}
		*n.to = v
	}
	return s, nil
}

func (s *selection) has(f *monitor.Flow) bool {
	if s.Tunnel != "" && f.Tunnel != s.Tunnel || s.State != "" && f.State != s.State {
		return false
	}
	switch {
	case s.Cause == "none" && f.Cause != "", s.Cause != "" && s.Cause != "none" && f.Cause != s.Cause:
		return false
	case s.Text == "":
		return true
	case !s.Name.IsZero():
		return f.Name == s.Name
	}
	return strings.Contains(strings.ToLower(f.Tunnel+" "+f.Hop+" "+f.Client.String()+" "+f.Target.String()+" "+f.Name.String()+" "+f.Peer), s.Text)
}

// selected is a page of flows.
type selected struct {
	Total   int            `json:"total"` // all flows
	Matched int            `json:"matched"`
	Page    int            `json:"page"`
	Pages   int            `json:"pages"`
	Flows   []monitor.Flow `json:"flows"`
}

// of returns the selected page of a snapshot; the last page if there are fewer.
func (s selection) of(snapshot *monitor.Snapshot) selected {
	var found []*monitor.Flow
	for i := range snapshot.Flows {
		if f := &snapshot.Flows[i]; s.has(f) {
			found = append(found, f)
		}
	}
	v := selected{Total: len(snapshot.Flows), Matched: len(found), Pages: max(1, (len(found)+s.Size-1)/s.Size), Flows: []monitor.Flow{}}
	v.Page = min(s.Page, v.Pages)
	column := flowOrders[s.order]
	ordered := firstOf(found, min(v.Page*s.Size, len(found)), func(a, b *monitor.Flow) int {
		c := column(a, b)
		if s.descending {
			c = -c
		}
		return cmp.Or(c, cmp.Compare(a.ID, b.ID))
	})
	for _, f := range ordered[(v.Page-1)*s.Size:] {
		one := *f
		one.UpBps, one.DownBps = whole(one.UpBps), whole(one.DownBps)
		v.Flows = append(v.Flows, one)
	}
	return v
}

// firstOf returns the first n in order. A page near the begin costs a comparison for most of the others,
// and a later one a sort of all.
func firstOf(all []*monitor.Flow, n int, compare func(a, b *monitor.Flow) int) []*monitor.Flow {
	const few = 8 // of which n may be one part
	if n*few > len(all) {
		slices.SortFunc(all, compare)
		return all[:n]
	}
	if n == 0 {
		return nil
	}
	first := make([]*monitor.Flow, 0, 2*n)
	cut := func() {
		slices.SortFunc(first, compare)
		first = first[:min(n, len(first))]
	}
	var last *monitor.Flow // of n that were found so far; nil: fewer were
	for _, f := range all {
		if last != nil && compare(f, last) >= 0 {
			continue
		}
		if first = append(first, f); len(first) == 2*n {
			cut()
			last = first[n-1]
		}
	}
	cut()
	return first
}

func (d *Dashboard) flows(s selection) view {
	return func(snapshot *monitor.Snapshot) (any, error) {
		return struct {
			Head head `json:"head"`
			selected
		}{d.headOf(snapshot), s.of(snapshot)}, nil
	}
}
