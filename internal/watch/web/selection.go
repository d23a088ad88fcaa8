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

// of returns the selected page of flows; the last page if there are fewer.
func (s *selection) of(m Monitor) (v selected) {
	var first *firstFlows
	if all := (selection{order: s.order, descending: s.descending, Page: s.Page, Size: s.Size}); *s == all {
		first = s.fastest(m)
		v.Total = m.Known()
		v.Matched = v.Total
	}
	if first == nil {
		first, v.Total, v.Matched = s.first(), 0, 0
		for f := range m.Flows() {
			v.Total++
			if s.has(f) {
				v.Matched++
				first.add(f)
			}
		}
	}
	v.Pages = max(1, (v.Matched+s.Size-1)/s.Size)
	v.Page = min(s.Page, v.Pages)
	v.Flows = first.page(v.Page, s.Size)
	return v
}

// top returns the selected page of the fastest flows, without a count of all.
func (s *selection) top(m Monitor) []monitor.Flow {
	if first := s.fastest(m); first != nil {
		return first.page(s.Page, s.Size)
	}
	return s.of(m).Flows
}

// fastest returns the flows up to the end of the page, the fastest first, and spares most of thousands a look; nil:
// they have another order, or too few move data.
func (s *selection) fastest(m Monitor) *firstFlows {
	if s.order != "rate" || !s.descending {
		return nil
	}
	first, least := s.first(), 0.0
	for f := range m.Moving(&least) {
		if !s.has(f) {
			continue
		}
		if first.add(f); first.cut {
			last := first.kept[first.n-1]
			least = last.UpBps + last.DownBps
		}
	}
	if len(first.kept) < first.n {
		return nil
	}
	return first
}

// first collects the flows up to the end of the page.
func (s *selection) first() *firstFlows {
	column := flowOrders[s.order]
	return &firstFlows{n: s.Page * s.Size, compare: func(a, b *monitor.Flow) int {
		c := column(a, b)
		if s.descending {
			c = -c
		}
		return cmp.Or(c, cmp.Compare(a.ID, b.ID))
	}}
}

// firstFlows are the first n flows in an order, of those added. It keeps at most
// 2n, so most flows of many cost one comparison and no memory.
type firstFlows struct {
	n       int
	compare func(a, b *monitor.Flow) int
	kept    []*monitor.Flow // copies; once there were 2n, the first n are in order
	cut     bool            // there were
}

func (t *firstFlows) add(f *monitor.Flow) {
	if t.cut && t.compare(f, t.kept[t.n-1]) >= 0 {
		return
	}
	one := *f
	if t.kept = append(t.kept, &one); len(t.kept) >= 2*t.n {
		t.list()
		t.cut = true
	}
}

// page returns those of a page, counted from 1.
func (t *firstFlows) page(page, size int) []monitor.Flow {
	out, ordered := []monitor.Flow{}, t.list()
	for _, f := range ordered[min((page-1)*size, len(ordered)):min(page*size, len(ordered))] {
		f.UpBps, f.DownBps = whole(f.UpBps), whole(f.DownBps)
		out = append(out, *f)
	}
	return out
}

// list returns them in order.
func (t *firstFlows) list() []*monitor.Flow {
	slices.SortFunc(t.kept, t.compare)
	n := min(t.n, len(t.kept))
	clear(t.kept[n:])
	t.kept = t.kept[:n]
	return t.kept
}

func (d *Dashboard) flows(s selection) view {
	return func(snapshot *monitor.Snapshot) (any, error) {
		return struct {
			Head head `json:"head"`
			selected
		}{d.headOf(snapshot), s.of(d.monitor)}, nil
	}
}
