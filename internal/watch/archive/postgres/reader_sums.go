package postgres

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/words/units"
)

// share is a part of a period that sums answer for, in whole units; the edges are the rest of it.
type share struct {
	from, to time.Time // zero: no bound
	none     bool      // no whole unit is in the period
	edges    [][2]time.Time
	rounded  bool // the edges have no rows any more: whole units stand for them
}

// split finds the whole units of a period. Rows are kept since a time, zero: always.
func split(p history.Period, unit time.Duration, now, kept time.Time) share {
	// What ends after now has not been written; so the unit of now is a whole one.
	if !p.Until.IsZero() && p.Until.After(now) {
		p.Until = time.Time{}
	}
	s := share{from: p.Since, to: p.Until}
	if !p.Since.IsZero() {
		s.from = p.Since.UTC().Truncate(unit)
		switch {
		case s.from.Equal(p.Since):
		case p.Since.Before(kept):
			s.rounded = true
		default:
			s.from = s.from.Add(unit)
		}
	}
	if !p.Until.IsZero() {
		s.to = p.Until.UTC().Truncate(unit)
		if !s.to.Equal(p.Until) && s.to.Before(kept) {
			s.to, s.rounded = s.to.Add(unit), true
		}
	}
	if !s.from.IsZero() && !s.to.IsZero() && !s.from.Before(s.to) {
		return share{none: true, edges: [][2]time.Time{{p.Since, p.Until}}}
	}
	if s.from.After(p.Since) {
		s.edges = append(s.edges, [2]time.Time{p.Since, s.from})
	}
	if s.to.Before(p.Until) {
		s.edges = append(s.edges, [2]time.Time{s.to, p.Until})
	}
	return s
}

// units is the condition on the sums of a share.
func (p *params) units(s share, column, ofType string) string {
	var b strings.Builder
	if !s.from.IsZero() {
		b.WriteString(" AND " + column + " >= " + p.time(s.from) + "::" + ofType)
	}
	if !s.to.IsZero() {
		b.WriteString(" AND " + column + " < " + p.time(s.to) + "::" + ofType)
	}
	return b.String()
}

// rows is the condition on the rows of a share's edges.
func (p *params) rows(s share) string {
	var parts []string
	for _, e := range s.edges {
		parts = append(parts, "(true"+p.ended(e[0], e[1])+")")
	}
	if len(parts) == 0 {
		return " AND false"
	}
	return " AND (" + strings.Join(parts, " OR ") + ")"
}

// keptSince is from when on rows are there: the first day (UTC) that has any. Sums stay longer.
func (a *asking) keptSince() (kept time.Time, err error) {
	err = a.each("SELECT "+ms("day")+` FROM generate_series((SELECT date_trunc('day', min(hour)) FROM longhaul.hours),
			(SELECT max(hour) FROM longhaul.hours), '1 day') AS day
		WHERE EXISTS (SELECT FROM longhaul.flows WHERE ended >= day AND ended < day + interval '1 day') ORDER BY day LIMIT 1`, &params{}, func(t *texted) error {
		kept = t.moment()
		return nil
	})
	return kept, err
}

// asked is a period and a selection of a question, and what answers it.
type asked struct {
	history.Period
	choice
	hours, days share
	approximate bool
}

// plan decides what of a question sums answer, and what rows.
func (a *asking) plan(period history.Period, of history.Selection) (asked, error) {
	chosen, err := a.choose(of)
	q := asked{Period: period, choice: chosen}
	if err != nil {
		return q, err
	}
	kept, err := a.keptSince()
	if err != nil {
		return q, err
	}
	var first time.Time
	err = a.each("SELECT "+ms("min(hour)")+" FROM longhaul.hours", &params{}, func(t *texted) error {
		first = t.moment()
		return nil
	})
	if err != nil {
		return q, err
	}
	// Days without flows before the first row may have had none.
	if first.Truncate(24 * time.Hour).Equal(kept) {
		kept = time.Time{}
	}
	if of.Client.IsValid() || period.MinBytes > 1 {
		lost := period.Since.Before(kept)
		if !lost {
			all := share{none: true, edges: [][2]time.Time{{period.Since, period.Until}}}
			q.hours, q.days = all, all
			return q, nil
		}
		if of.Client.IsValid() {
			return q, history.ErrDisplaced
		}
		q.approximate, q.MinBytes = true, 0
	}
	now := time.Now()
	q.hours, q.days = split(period, time.Hour, now, kept), split(period, 24*time.Hour, now, kept)
	q.approximate = q.approximate || q.hours.rounded || q.days.rounded
	return q, nil
}

// transferSQL is whether a row counts as a transfer.
func (p *params) transferSQL(minBytes int64) string {
	return "elapsed_us > 0 AND " + movedSQL + " >= " + p.number(max(minBytes, 1))
}

// Summary is what there is to say of the selected records that ended in a period.
func (r *Reader) Summary(ctx context.Context, p history.Period, of history.Selection) (s history.Summary, err error) {
	err = r.ask(ctx, func(a *asking) error {
		s, err = a.summary(p, of)
		return err
	})
	return s, err
}

// Compare is the summaries of two periods, as of one moment.
func (r *Reader) Compare(ctx context.Context, before, after history.Period, of history.Selection) (c history.Comparison, err error) {
	err = r.ask(ctx, func(a *asking) error {
		if c.Before, err = a.summary(before, of); err == nil {
			c.After, err = a.summary(after, of)
		}
		return err
	})
	c.Judge()
	return c, err
}

func (a *asking) summary(period history.Period, of history.Selection) (history.Summary, error) {
	q, err := a.plan(period, of)
	if err != nil {
		return history.Summary{}, err
	}
	s := history.Summary{Period: q.Period, Selection: of, PairsOnce: q.once, Approximate: q.approximate, QuantileError: QuantileError,
		RetransmittedShare: -1, Causes: []history.CauseCount{}, Ends: []history.EndCount{}}
	if err := a.addFlows(&q, &s); err != nil {
		return s, err
	}
	values, err := a.values(&q)
	if err != nil {
		return s, err
	}
	s.TransferTime, s.Goodput = history.NewDistribution(values[timeS]), history.NewDistribution(values[goodputBps])
	s.Transfers = s.TransferTime.Count
	return s, nil
}

// addFlows fills in what is counted and added up.
func (a *asking) addFlows(q *asked, s *history.Summary) error {
	p := &params{}
	var parts []string
	if !q.hours.none {
		parts = append(parts, `SELECT cause, ended_by, reason, flows, bytes_up, bytes_down, bytes_sent, bytes_retransmitted,
			resumed, resumes, outage_us, longest_outage_us FROM longhaul.hours WHERE true`+p.units(q.hours, "hour", "timestamptz")+p.lines(&q.choice))
	}
	if len(q.hours.edges) > 0 {
		parts = append(parts, `SELECT coalesce(cause, ''), coalesce(ended_by, ''), coalesce(reason, ''), count(*), sum(bytes_up), sum(bytes_down),
			sum(`+sentSQL+`), sum(`+againSQL+`), count(outage_us), sum(resumes), sum(outage_us), max(outage_us)
			FROM longhaul.flows WHERE true`+p.rows(q.hours)+p.selection(&q.choice)+" GROUP BY 1, 2, 3")
	}
	causes, ends := map[string]*history.CauseCount{}, map[[2]string]*history.EndCount{}
	var sent, again int64
	var resumed history.Resumed
	err := a.each(`SELECT cause, ended_by, reason, sum(flows)::bigint, sum(bytes_up)::bigint, sum(bytes_down)::bigint, sum(bytes_sent)::bigint,
			sum(bytes_retransmitted)::bigint, sum(resumed)::bigint, sum(resumes)::bigint, sum(outage_us)::bigint, max(longest_outage_us)::bigint
		FROM (`+strings.Join(parts, " UNION ALL ")+`) AS parts (cause, ended_by, reason, flows, bytes_up, bytes_down, bytes_sent, bytes_retransmitted,
			resumed, resumes, outage_us, longest_outage_us) GROUP BY 1, 2, 3`, p, func(t *texted) error {
		cause, end := t.text(), [2]string{t.text(), t.text()}
		flows, up, down := t.number(0), t.number(0), t.number(0)
		s.Flows += flows
		s.BytesUp += up
		s.BytesDown += down
		sent, again = sent+t.number(0), again+t.number(0)
		resumed.Flows += t.number(0)
		resumed.Resumes += t.number(0)
		resumed.Outage += units.Seconds(time.Duration(t.number(0)) * time.Microsecond)
		resumed.Longest = max(resumed.Longest, units.Seconds(time.Duration(t.number(0))*time.Microsecond))
		if cause != "" {
			if causes[cause] == nil {
				causes[cause] = &history.CauseCount{Cause: doctor.Cause(cause)}
			}
			causes[cause].Flows += flows
			causes[cause].Bytes += up + down
		}
		if ends[end] == nil {
			ends[end] = &history.EndCount{EndedBy: end[0], Reason: end[1]}
		}
		ends[end].Flows += flows
		return nil
	})
	if sent > 0 {
		s.RetransmittedShare = float64(again) / float64(sent)
	}
	if resumed.Flows > 0 {
		s.Resumed = &resumed
	}
	for _, c := range causes {
		s.Causes = append(s.Causes, *c)
	}
	for _, e := range ends {
		s.Ends = append(s.Ends, *e)
	}
	s.Sort()
	return err
}

// binned are the values of a quantity, by bin.
type binned map[int64]int64

// digits is how many of a histogram a bin has, see longhaul.histogram.
const digits = 12

// add adds a histogram of an answer; NULL has nothing.
func (b binned) add(t *texted) {
	text := t.next()
	whole, part, _ := bytes.Cut(text, []byte("."))
	for bin := int64(0); len(whole) > 0; bin++ {
		at := max(len(whole)-digits, 0)
		b.addDigits(t, text, bin, whole[at:])
		whole = whole[:at]
	}
	for bin := int64(-1); len(part) >= digits; bin-- {
		b.addDigits(t, text, bin, part[:digits])
		part = part[digits:]
	}
	if len(part) > 0 {
		t.fail(text)
	}
}

func (b binned) addDigits(t *texted, all []byte, bin int64, digits []byte) {
	switch n, err := strconv.ParseUint(string(digits), 10, 63); {
	case err != nil:
		t.fail(all)
	case n > 0:
		b[bin] += int64(n)
	}
}

// values in ascending order.
func (b binned) values() []history.Counted {
	all := make([]history.Counted, 0, len(b))
	for _, bin := range sortedKeys(b) {
		all = append(all, history.Counted{Value: middle(bin), Count: b[bin]})
	}
	return all
}

// middle of a bin, see longhaul.histogram.
func middle(bin int64) float64 { return math.Exp2((float64(bin) + 0.5) / 32) }

// binsSQL groups rows by the bins of their time and goodput. Of each row of the answer one of the two is NULL.
const binsSQL = "longhaul.bin(elapsed_us / 1e6::double precision) AS t, longhaul.bin(" + goodputSQL + ") AS g, count(*)"

// values are the transfers' times and goodputs.
func (a *asking) values(q *asked) (map[byte][]history.Counted, error) {
	bins := map[byte]binned{timeS: {}, goodputBps: {}}
	if !q.days.none {
		p := &params{}
		err := a.each("SELECT sum(goodputs), sum(times) FROM longhaul.days WHERE true"+p.units(q.days, "day", "date")+p.lines(&q.choice),
			p, func(t *texted) error {
				bins[goodputBps].add(t)
				bins[timeS].add(t)
				return nil
			})
		if err != nil {
			return nil, err
		}
	}
	if len(q.days.edges) > 0 {
		p := &params{}
		err := a.each("SELECT "+binsSQL+" FROM longhaul.flows WHERE "+p.transferSQL(q.MinBytes)+p.rows(q.days)+p.selection(&q.choice)+
			" GROUP BY GROUPING SETS ((1), (2))", p, func(t *texted) error {
			addBin(t, bins[timeS], bins[goodputBps])
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return map[byte][]history.Counted{timeS: bins[timeS].values(), goodputBps: bins[goodputBps].values()}, nil
}

// addBin reads a row of binsSQL.
func addBin(t *texted, times, goodputs binned) {
	const null = math.MinInt64
	if bin := t.number(null); bin != null {
		t.next()
		times[bin] += t.number(0)
	} else if bin := t.number(null); bin != null {
		goodputs[bin] += t.number(0)
	}
}

// Matrix is the flows between sites, each counted where its client is, from longhaul.matrix.
func (r *Reader) Matrix(ctx context.Context, p history.Period, most int) (history.Matrix, error) {
	m := history.Matrix{Period: p, Lines: []history.MatrixLine{}, QuantileError: QuantileError}
	bound := func(q *params, t time.Time) string {
		if t.IsZero() {
			return "NULL"
		}
		return q.time(t)
	}
	err := r.ask(ctx, func(a *asking) error {
		q := &params{}
		lines := "NULL"
		if most > 0 {
			lines = q.add(strconv.Itoa(most), "integer")
		}
		return a.each("SELECT * FROM longhaul.matrix("+bound(q, p.Since)+", "+bound(q, p.Until)+", "+lines+")", q, func(t *texted) error {
			m.Lines = append(m.Lines, history.MatrixLine{
				From: t.text(), To: t.text(), Flows: t.number(0), Transfers: t.number(0), BytesUp: t.number(0), BytesDown: t.number(0),
				RetransmittedShare: t.float(-1), GoodputMedian: t.float(-1), GoodputP99: t.float(-1), TimeMedian: t.float(-1), TimeP99: t.float(-1),
			})
			return nil
		})
	})
	m.Sort()
	return m, err
}

// Extent is what the database holds. Bytes are those of the last time that it counted them itself.
func (r *Reader) Extent(ctx context.Context) (history.Extent, error) {
	e := history.Extent{Tunnels: []string{}}
	err := r.ask(ctx, func(a *asking) error {
		kept, err := a.keptSince()
		if err != nil {
			return err
		}
		p := &params{}
		since := ""
		if !kept.IsZero() {
			since = " WHERE hour >= " + p.time(kept)
		}
		var first, last time.Time
		err = a.each("SELECT "+ms("min(hour)")+", "+ms("max(hour)")+", (SELECT coalesce(sum(flows), 0)::bigint FROM longhaul.hours"+since+`),
			(SELECT sum(relpages::bigint) * current_setting('block_size')::bigint FROM pg_class WHERE relnamespace = 'longhaul'::regnamespace)
			FROM longhaul.hours`, p, func(t *texted) error {
			first, last, e.Records, e.Bytes = t.moment(), t.moment(), t.number(0), t.number(0)
			e.SummariesSince = first
			return nil
		})
		if err != nil || kept.IsZero() {
			return err
		}
		// Only the rows of two hours are looked at: the first and the last of all.
		if e.Oldest, err = a.end("min", later(kept, first), time.Hour); err == nil && e.Oldest.IsZero() {
			e.Oldest, err = a.end("min", kept, 24*time.Hour)
		}
		if err == nil {
			e.Newest, err = a.end("max", last, time.Hour)
		}
		if err != nil {
			return err
		}
		places, err := a.places()
		e.Tunnels = places.Tunnels
		return err
	})
	return e, err
}

// Places are what the database knows of relays, sites and tunnels.
func (r *Reader) Places(ctx context.Context) (p history.Places, err error) {
	err = r.ask(ctx, func(a *asking) error {
		p, err = a.places()
		return err
	})
	return p, err
}

func (a *asking) places() (history.Places, error) {
	relays, sites, tunnels := map[string]bool{}, map[string]bool{}, map[string]bool{}
	err := a.each("SELECT relay, relay_site, site, tunnel FROM longhaul.lines", &params{}, func(t *texted) error {
		relays[t.text()] = true
		sites[t.text()] = true
		sites[t.text()] = true
		tunnels[t.text()] = true
		return nil
	})
	delete(sites, "")
	list := func(of map[string]bool) []string { return append([]string{}, sortedKeys(of)...) }
	return history.Places{Relays: list(relays), Sites: list(sites), Tunnels: list(tunnels)}, err
}

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// end is the first or the last end of a flow in a time; zero: none ended.
func (a *asking) end(which string, from time.Time, length time.Duration) (at time.Time, err error) {
	p := &params{}
	err = a.each("SELECT "+ms(which+"(ended)")+" FROM longhaul.flows WHERE true"+p.ended(from, from.Add(length)), p, func(t *texted) error {
		at = t.moment()
		return nil
	})
	return at, err
}

// rowsChart is the longest period of which rows make a chart, in steps of less than an hour. Sums
// make longer ones, in days, since quantiles have no shorter sums.
const rowsChart = 60 * time.Hour

// Series is the course of a period. What flows carried is spread over their lives where rows are
// there; in sums of days, it is all at the flow's end.
func (r *Reader) Series(ctx context.Context, p history.Period, of history.Selection) (history.Chart, error) {
	chart := history.Chart{Selection: of, Points: []history.Point{}}
	err := r.ask(ctx, func(a *asking) error {
		kept, err := a.keptSince()
		if err != nil {
			return err
		}
		if p.Until.IsZero() {
			p.Until = time.Now()
		}
		if p.Since.IsZero() {
			if p.Since = kept; kept.IsZero() {
				return nil
			}
		}
		chart.Period = p
		if !p.Until.After(p.Since) {
			return nil
		}
		step := time.Duration(history.ChartStep(p.Until.Sub(p.Since))) * time.Second
		rows := of.Client.IsValid() || p.MinBytes > 1 || p.Until.Sub(p.Since) <= rowsChart && !p.Since.Before(kept)
		if !rows {
			step = max(step, 24*time.Hour)
		}
		seconds := int64(step / time.Second)
		c := &course{step: step, from: time.Unix(floor(p.Since.Unix(), seconds)*seconds, 0).UTC()}
		c.points = make([]coursePoint, (p.Until.Sub(c.from)+step-1)/step)
		chosen, err := a.choose(of)
		switch {
		case err != nil:
			return err
		case rows:
			err = a.courseOfRows(c, p.MinBytes, &chosen)
		default:
			err = a.courseOfSums(c, &chosen)
		}
		chart.Step = units.Seconds(step)
		for i := range c.points {
			chart.Points = append(chart.Points, c.point(i))
		}
		return err
	})
	return chart, err
}

// course is a chart while its points are filled.
type course struct {
	from   time.Time
	step   time.Duration
	points []coursePoint
}

type coursePoint struct {
	up, down, flows, sent, again int64
	times, goodputs              binned
}

// to is the end of the last step.
func (c *course) to() time.Time { return c.from.Add(time.Duration(len(c.points)) * c.step) }

// stepSQL is the number of the step that a time is in.
func (c *course) stepSQL(p *params, column string) string {
	return "floor((date_part('epoch', " + column + ") - " + p.number(c.from.Unix()) + ") / " + p.number(int64(c.step/time.Second)) + ")::bigint"
}

// stepOf is the number of the step that a time is in.
func (c *course) stepOf(at time.Time) int64 { return floor(int64(at.Sub(c.from)), int64(c.step)) }

// at is a point by its number, nil if the course has none.
func (c *course) at(step int64) *coursePoint {
	if step < 0 || step >= int64(len(c.points)) {
		return nil
	}
	p := &c.points[step]
	if p.times == nil {
		p.times, p.goodputs = binned{}, binned{}
	}
	return p
}

func (c *course) addEnded(t *texted) error {
	if p := c.at(t.number(-1)); p != nil {
		p.flows += t.number(0)
		p.sent += t.number(0)
		p.again += t.number(0)
	}
	return nil
}

func (c *course) addCarried(t *texted) error {
	if p := c.at(t.number(-1)); p != nil {
		p.up += t.number(0)
		p.down += t.number(0)
	}
	return nil
}

func (a *asking) courseOfRows(c *course, minBytes int64, of *choice) error {
	p := &params{}
	err := a.each("SELECT "+c.stepSQL(p, "ended")+", count(*), sum("+sentSQL+")::bigint, sum("+againSQL+")::bigint FROM longhaul.flows WHERE true"+
		p.ended(c.from, c.to())+p.selection(of)+" GROUP BY 1", p, c.addEnded)
	if err != nil {
		return err
	}
	// A flow's bytes are laid evenly over the steps of its life; most live in one.
	p = &params{}
	err = a.each(`SELECT step, sum(bytes_up / (last - first + 1))::bigint, sum(bytes_down / (last - first + 1))::bigint
		FROM (SELECT bytes_up, bytes_down, `+c.stepSQL(p, "ended")+" AS last, "+c.stepSQL(p, "ended - elapsed_us * interval '1 microsecond'")+
		" AS first FROM longhaul.flows WHERE true"+p.ended(c.from, c.to())+p.selection(of)+`) AS lives,
		generate_series(greatest(first, 0), last) AS step GROUP BY 1`, p, c.addCarried)
	if err != nil {
		return err
	}
	p = &params{}
	return a.each("SELECT "+c.stepSQL(p, "ended")+" AS step, "+binsSQL+" FROM longhaul.flows WHERE "+p.transferSQL(minBytes)+
		p.ended(c.from, c.to())+p.selection(of)+" GROUP BY GROUPING SETS ((1, 2), (1, 3))", p, func(t *texted) error {
		if point := c.at(t.number(-1)); point != nil {
			addBin(t, point.times, point.goodputs)
		}
		return nil
	})
}

func (a *asking) courseOfSums(c *course, of *choice) error {
	whole := share{from: c.from, to: c.to()}
	p := &params{}
	return a.each("SELECT "+ms("day::timestamptz")+", sum(flows)::bigint, sum(bytes_sent)::bigint, sum(bytes_retransmitted)::bigint, sum(bytes_up)::bigint,"+
		" sum(bytes_down)::bigint, sum(goodputs), sum(times) FROM longhaul.days WHERE true"+p.units(whole, "day", "date")+p.lines(of)+" GROUP BY day", p, func(t *texted) error {
		if p := c.at(c.stepOf(t.moment())); p != nil {
			p.flows += t.number(0)
			p.sent += t.number(0)
			p.again += t.number(0)
			p.up += t.number(0)
			p.down += t.number(0)
			p.goodputs.add(t)
			p.times.add(t)
		}
		return nil
	})
}

func (c *course) point(i int) history.Point {
	p := &c.points[i]
	seconds := c.step.Seconds()
	times, goodputs := p.times.values(), p.goodputs.values()
	point := history.Point{
		At: c.from.Add(time.Duration(i) * c.step), UpBps: float64(p.up) * 8 / seconds, DownBps: float64(p.down) * 8 / seconds,
		Flows: p.flows, RetransmittedShare: -1,
		TransferTimeMedian: history.Quantile(times, .5), TransferTimeP95: history.Quantile(times, .95), GoodputMedian: history.Quantile(goodputs, .5),
	}
	for _, v := range times {
		point.Transfers += v.Count
	}
	if p.sent > 0 {
		point.RetransmittedShare = float64(p.again) / float64(p.sent)
	}
	return point
}
