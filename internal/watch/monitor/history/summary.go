package history

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"longhaul/internal/words/units"
)

// Summary is what there is to say of the selected flows that ended in a period.
func (r *Reader) Summary(ctx context.Context, p Period, of Selection) (Summary, error) {
	var s Summary
	err := r.look(ctx, func(v *view) (err error) {
		s, err = v.summary(p, of)
		return err
	})
	return s, err
}

// Compare is the summaries of two periods, as of one moment.
func (r *Reader) Compare(ctx context.Context, before, after Period, of Selection) (Comparison, error) {
	var c Comparison
	err := r.look(ctx, func(v *view) (err error) {
		if c.Before, err = v.summary(before, of); err == nil {
			c.After, err = v.summary(after, of)
		}
		return err
	})
	c.Judge()
	return c, err
}

func (v *view) summary(p Period, of Selection) (Summary, error) {
	c := v.choice(p.Since, p.Until, of, "")
	s, err := v.summaryOf(c, p, of)
	if err == nil {
		s.Resumed, err = v.resumed(c)
	}
	return s, err
}

// resumed counts the resumed flows of a choice.
func (v *view) resumed(c choice) (*Resumed, error) {
	if !v.has.pairs {
		return nil, nil
	}
	var r Resumed
	var outage, longest int64
	err := v.tx.QueryRowContext(v.ctx, `SELECT count(*), ifnull(sum(resumes), 0), ifnull(sum(outage_us), 0), ifnull(max(outage_us), 0)
		FROM records WHERE outage_us IS NOT NULL AND end_ms >= ? AND end_ms < ? AND (? = 0 OR tunnel_id = ?)`+c.and(),
		append([]any{c.span.from, c.span.to, c.tunnel, c.tunnel}, c.args...)...).Scan(&r.Flows, &r.Resumes, &outage, &longest)
	if err != nil || r.Flows == 0 {
		return nil, err
	}
	r.Outage, r.Longest = units.Seconds(time.Duration(outage)*time.Microsecond), units.Seconds(time.Duration(longest)*time.Microsecond)
	return &r, nil
}

func (v *view) summaryOf(c choice, p Period, of Selection) (Summary, error) {
	whole, err := v.covers(c.span)
	if err != nil {
		return Summary{}, err
	}
	if whole {
		a := newAggregate(fine)
		if err := v.scan(c, func(f *facts) { a.add(f, p.MinBytes) }, nil); err != nil {
			return Summary{}, err
		}
		s := a.summary(p, of, v.words)
		s.QuantileError = RecordsError
		return s, nil
	}
	if of.narrow() {
		return Summary{}, ErrDisplaced
	}
	a := newAggregate(coarse)
	err = v.hours(c, true, func(_, _, _ int64, ended []byte) error {
		if len(ended) == 0 {
			return nil
		}
		return a.read(ended)
	})
	s := a.summary(p, of, v.words)
	s.Approximate, s.QuantileError = true, HoursError
	s.Period.MinBytes = 0
	return s, err
}

// covers is whether every record of a span that ever was is still there.
func (v *view) covers(s span) (bool, error) {
	var hours *int64
	if err := v.tx.QueryRowContext(v.ctx, `SELECT min(at) FROM hours`).Scan(&hours); err != nil || hours == nil {
		return hours == nil, err
	}
	first, err := v.factsFrom(1)
	switch {
	case errors.Is(err, ErrNoRecord):
		return false, nil
	case err != nil:
		return false, err
	case first.id == 1:
		return true, nil
	}
	oldest := first.endMs
	// Hours older than the first record tell of more than there is.
	from := max(s.from, *hours*1000)
	return from >= oldest, nil
}

// hours visits the summaries of the hours that begin in a span, in their order:
// what was carried and, if it is wanted and there are any, the flows that ended.
func (v *view) hours(c choice, ended bool, visit func(at, up, down int64, ended []byte) error) error {
	from, to := c.seconds(hour)
	what := "at, bytes_up, bytes_down, NULL"
	if ended {
		what = "at, bytes_up, bytes_down, ended"
	}
	return v.each("SELECT "+what+" FROM hours WHERE at >= ? AND at < ? AND (? = 0 OR tunnel = ?) ORDER BY at",
		[]any{from, to, c.tunnel, c.tunnel}, func(row scanner) error {
			var at, up, down int64
			var stored sql.RawBytes
			if err := row.Scan(&at, &up, &down, &stored); err != nil {
				return err
			}
			return visit(at, up, down, stored)
		})
}

// seconds is the span in whole steps.
func (s span) seconds(step int64) (from, to int64) {
	from, to = floor(s.from/1000, step), s.to/1000
	if rest := to % step; rest > 0 && to < 1<<50 {
		to += step - rest
	}
	return from, to
}
