package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// recordColumns are what a record is read from, in the order of readRecord.
var recordColumns = "seq, relay, relay_site, " + ms("started") + ", " + ms("ended") + `, elapsed_us, name, tunnel, site, peer, hop,
	host(client), client_port, host(target), target_port, bytes_up, bytes_down, cause, cause_leg, cause_share, ended_by, reason, error, resumes, outage_us,
	client_side, client_congestion_control, client_rtt_us, client_min_rtt_us, client_bytes_sent, client_bytes_retransmitted, client_retransmits,
	target_side, target_congestion_control, target_rtt_us, target_min_rtt_us, target_bytes_sent, target_bytes_retransmitted, target_retransmits, goodput`

func readRecord(t *texted) (r monitor.Record) {
	r.ID, r.Relay, r.RelaySite = t.number(0), t.text(), t.text()
	r.Start, r.End, r.Elapsed = t.moment(), t.moment(), t.micros()
	if name := t.text(); name != "" {
		var err error
		if r.Name, err = flow.ParseName(name); err != nil {
			t.fail([]byte(name))
		}
	}
	r.Tunnel, r.Site, r.Peer, r.Hop = t.text(), t.text(), t.text(), t.text()
	r.Client, r.Target = t.address(), t.address()
	r.BytesUp, r.BytesDown = t.number(0), t.number(0)
	r.Cause, r.CauseLeg, r.CauseShare = doctor.Cause(t.text()), flow.Leg(t.text()), t.float(0)
	r.EndedBy, r.Reason, r.Error = t.text(), flow.EndReason(t.text()), t.text()
	r.Resumes, r.Outage = t.number(0), t.micros()
	for _, leg := range []*flow.LegRecord{&r.ClientLeg, &r.TargetLeg} {
		*leg = flow.LegRecord{Side: t.text(), CongestionControl: t.text(), RTT: t.micros(), MinRTT: t.micros(),
			BytesSent: t.number(-1), BytesRetransmitted: t.number(-1), Retransmits: t.number(-1)}
	}
	r.Goodput = t.series()
	return r
}

func (t *texted) micros() units.Seconds {
	us := t.number(0)
	if us < 0 || us > math.MaxInt64/1000 {
		t.fail([]byte(strconv.FormatInt(us, 10)))
		return 0
	}
	return units.Seconds(time.Duration(us) * time.Microsecond)
}

// address reads an address and its port. Of a prefix, which a relay may write instead of a client, it
// is the first one, as [flow.Address] has it.
func (t *texted) address() flow.Address {
	host, port := t.text(), t.number(0)
	if host == "" {
		return flow.Address{}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || port < 0 || port > 65535 {
		t.fail([]byte(host))
		return flow.Address{}
	}
	return flow.Address{AddrPort: netip.AddrPortFrom(addr, uint16(port))}
}

func (t *texted) series() monitor.Series {
	text := t.next()
	if len(text) < 2 {
		return monitor.Series{}
	}
	b, err := hex.DecodeString(string(text[2:])) // after \x
	if err == nil {
		var s monitor.Series
		if s, err = history.DecodeSeries(b); err == nil {
			return s
		}
	}
	t.fail(text)
	return monitor.Series{}
}

// records calls visit with the rows of a selection.
func (a *asking) records(selection string, p *params, visit func(*monitor.Record)) error {
	return a.each("SELECT "+recordColumns+" FROM longhaul.flows "+selection, p, func(t *texted) error {
		r := readRecord(t)
		visit(&r)
		return nil
	})
}

// What both legs sent, and what of that again, of the flows of which it is known.
const (
	sentSQL  = "(coalesce(client_bytes_sent, 0) + coalesce(target_bytes_sent, 0))"
	againSQL = `(CASE WHEN client_bytes_sent IS NOT NULL THEN coalesce(client_bytes_retransmitted, 0) ELSE 0 END
		+ CASE WHEN target_bytes_sent IS NOT NULL THEN coalesce(target_bytes_retransmitted, 0) ELSE 0 END)`
	movedSQL   = "(bytes_up + bytes_down)"
	goodputSQL = "(bytes_up + bytes_down)::double precision * 8e6::double precision / nullif(elapsed_us, 0)"
)

// rank is where a row stands in an order, the largest first, and which rows are in it at all.
func rank(o history.Order) (expression, condition string) {
	switch o {
	case history.Slowest:
		return "-(" + goodputSQL + ")", " AND elapsed_us > 0 AND " + movedSQL + " > 0"
	case history.Longest:
		return "elapsed_us", ""
	case history.Largest:
		return movedSQL, ""
	case history.Retransmitted:
		return againSQL + "::double precision / nullif(" + sentSQL + ", 0)", " AND " + againSQL + " > 0 AND " + sentSQL + " > 0"
	}
	return "ended", ""
}

// Query returns the records that a query selects, in its order. Newest is the latest end.
func (r *Reader) Query(ctx context.Context, q history.Query) ([]monitor.Record, error) {
	if q.Order == "" {
		q.Order = history.Newest
	}
	if !slices.Contains(history.Orders(), q.Order) {
		return nil, errors.New("there is no order " + string(q.Order))
	}
	limit := q.Limit
	switch {
	case limit == 0:
		limit = history.DefaultLimit
	case limit < 0 || limit > MaxRecords:
		limit = MaxRecords + 1
	}
	records := []monitor.Record{}
	err := r.ask(ctx, func(a *asking) (err error) {
		records, err = a.list(q, limit)
		return err
	})
	if len(records) > MaxRecords {
		return nil, remedy.New(fmt.Errorf("the list has more than %d records", MaxRecords), "select fewer, or longhaul history export")
	}
	return records, err
}

// windows are how far a list of the newest looks back, one after the other, until it has enough:
// most want a few of the last minutes, and there is no index of the times. 0 is everything.
var windows = []time.Duration{time.Hour, 6 * time.Hour, 36 * time.Hour, 9 * 24 * time.Hour, 0}

func (a *asking) list(q history.Query, limit int) ([]monitor.Record, error) {
	top := time.Now()
	if q.After != 0 {
		known := false
		p := &params{}
		err := a.each("SELECT "+ms("ended")+" FROM longhaul.flows WHERE seq = "+p.number(q.After), p, func(t *texted) error {
			known = true
			if at := t.moment(); q.Order == history.Newest {
				top = at
			}
			return nil
		})
		if err == nil && !known {
			err = fmt.Errorf("%w: %d", history.ErrNoRecord, q.After)
		}
		if err != nil {
			return nil, err
		}
	}
	if q.Order != history.Newest || !q.Name.IsZero() {
		return a.page(q, limit)
	}
	if q.Client.IsValid() { // its index has the times
		return a.page(q, limit)
	}
	err := a.each("SELECT "+ms("max(hour) + interval '1 hour'")+" FROM longhaul.hours", &params{}, func(t *texted) error {
		if end := t.moment(); end.Before(top) {
			top = end
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !q.Until.IsZero() && q.Until.Before(top) {
		top = q.Until
	}
	for _, w := range windows {
		near := q
		if since := top.Add(-w); w > 0 && since.After(q.Since) {
			near.Since = since
		}
		records, err := a.page(near, limit)
		if err != nil || len(records) == limit || near.Since.Equal(q.Since) {
			return records, err
		}
	}
	panic("postgres: the last window has everything")
}

func (a *asking) page(q history.Query, limit int) ([]monitor.Record, error) {
	p := &params{}
	by, condition := rank(q.Order)
	where := "WHERE true" + p.of(&q) + condition
	if least := q.LeastBytes(); least > 0 {
		where += " AND " + movedSQL + " >= " + p.number(least)
	}
	if q.After != 0 {
		where += " AND (" + by + ", seq) < (SELECT " + by + ", seq FROM longhaul.flows WHERE seq = " + p.number(q.After) + ")"
		if q.Order == history.Newest {
			where += " AND ended <= (SELECT ended FROM longhaul.flows WHERE seq = " + p.number(q.After) + ")"
		}
	}
	records := []monitor.Record{}
	err := a.records(where+" ORDER BY "+by+" DESC, seq DESC LIMIT "+strconv.Itoa(limit), p, func(r *monitor.Record) {
		records = append(records, *r)
	})
	return records, err
}

// of is the condition of a query, but for its order.
func (p *params) of(q *history.Query) string {
	where := p.ended(q.Since, q.Until) + p.selection(&choice{Selection: q.Selection})
	if q.Cause != "" {
		where += " AND cause = " + p.add(clean(string(q.Cause)), "text")
	}
	if !q.Name.IsZero() {
		where += " AND name = " + p.add(q.Name.String(), "uuid")
	}
	return where
}

// A walk's pages: that many records at most, of a span of time that follows their number.
const (
	walkPage    = 5000
	firstWindow = time.Hour
	leastWindow = time.Second
)

// Walk calls visit with every record of a query, the oldest end first, and ends with the first
// error. No transaction lasts while visit is called.
func (r *Reader) Walk(ctx context.Context, q history.Query, visit func(*monitor.Record) error) error {
	begin, end, err := r.span(ctx)
	if err != nil || begin.IsZero() {
		return err
	}
	if !q.Since.IsZero() && q.Since.After(begin) {
		begin = q.Since
	}
	if !q.Until.IsZero() && q.Until.Before(end) {
		end = q.Until
	}
	window := firstWindow
	var after *monitor.Record // the last one, if its window has more
	for begin.Before(end) {
		until := begin.Add(window)
		if until.After(end) {
			until = end
		}
		page, err := r.walkPage(ctx, q, begin, until, after)
		if err != nil {
			return err
		}
		for i := range page {
			if err := visit(&page[i]); err != nil {
				return err
			}
		}
		switch {
		case len(page) == walkPage:
			last := page[len(page)-1]
			begin, after = last.End, &last
			window = max(window/2, leastWindow)
			continue
		case len(page) < walkPage/4:
			window *= 2
		}
		begin, after = until, nil
	}
	return nil
}

func (r *Reader) walkPage(ctx context.Context, q history.Query, begin, until time.Time, after *monitor.Record) (page []monitor.Record, err error) {
	q.Since, q.Until = begin, until
	p := &params{}
	where := "WHERE true" + p.of(&q)
	if q.MinBytes > 0 {
		where += " AND " + movedSQL + " >= " + p.number(q.MinBytes)
	}
	if after != nil {
		where += " AND (ended, seq) > (" + p.time(after.End) + ", " + p.number(after.ID) + ")"
	}
	err = r.ask(ctx, func(a *asking) error {
		return a.records(where+" ORDER BY ended, seq LIMIT "+strconv.Itoa(walkPage), p, func(r *monitor.Record) { page = append(page, *r) })
	})
	return page, err
}

// span is from the first hour that has flows to the end of the last one; zero: no hour has any.
func (r *Reader) span(ctx context.Context) (begin, end time.Time, err error) {
	err = r.ask(ctx, func(a *asking) error {
		return a.each("SELECT "+ms("min(hour)")+", "+ms("max(hour)")+" FROM longhaul.hours", &params{}, func(t *texted) error {
			if begin, end = t.moment(), t.moment(); !end.IsZero() {
				end = end.Add(time.Hour)
			}
			return nil
		})
	})
	return begin, end, err
}
