package units

import (
	"fmt"
	"strings"
	"time"

	"longhaul/internal/words/remedy"
)

// ParseMoment reads a date, a date with a time, a time of today, or how long ago:
// "2026-11-20", "2026-11-20T14:30", "14:30", "yesterday", "36h". Begin and end differ
// only for a date, which is the whole day. The error is a [*remedy.Error].
func ParseMoment(text string, now time.Time) (begin, end time.Time, err error) {
	switch text {
	case "now":
		return now, now, nil
	case "today":
		text = now.Format(time.DateOnly)
	case "yesterday":
		text = now.AddDate(0, 0, -1).Format(time.DateOnly)
	}
	if t, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return t, t.AddDate(0, 0, 1), nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, t, nil
		}
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			y, m, d := now.Date()
			at := time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			return at, at, nil
		}
	}
	// A bare number is no time: 2026 may mean a year.
	if d, err := ParseDuration(text); err == nil && strings.Trim(text, "0123456789.") != "" {
		return now.Add(-d), now.Add(-d), nil
	}
	return begin, end, remedy.New(fmt.Errorf("invalid time %q", text),
		"write it like 2026-11-20, 2026-11-20T14:30, 14:30, yesterday, or 36h for as long ago")
}

// Period is a stretch of time, To not included; zero is no bound.
type Period struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// ParsePeriod reads FROM..TO, one date for its day, or one time until now.
func ParsePeriod(text string, now time.Time) (p Period, err error) {
	from, to, both := strings.Cut(text, "..")
	begin, end, err := ParseMoment(from, now)
	if err != nil {
		return p, err
	}
	p = Period{begin, end}
	switch {
	case both:
		if _, p.To, err = ParseMoment(to, now); err != nil {
			return p, err
		}
	case begin.Equal(end):
		p.To = now
	}
	if !p.From.Before(p.To) {
		return p, remedy.New(fmt.Errorf("the period %s ends before it begins", text), "write it like 2026-11-01..2026-11-07, 48h..24h or yesterday")
	}
	return p, nil
}

// ParseSpan reads the values of --since and --until; empty is no bound.
func ParseSpan(since, until string, now time.Time) (p Period, err error) {
	if since != "" {
		if p.From, _, err = ParseMoment(since, now); err != nil {
			return p, err
		}
	}
	if until != "" {
		if _, p.To, err = ParseMoment(until, now); err != nil {
			return p, err
		}
	}
	if since != "" && until != "" && !p.From.Before(p.To) {
		return p, remedy.New(fmt.Errorf("--until %s is not after --since %s", until, since), "give a later time")
	}
	return p, nil
}

// Around returns the periods of the same length before and after a moment. Their
// length 0 is the time since then.
func Around(at string, length time.Duration, now time.Time) (before, after Period, err error) {
	moment, _, err := ParseMoment(at, now)
	if err != nil {
		return before, after, err
	}
	if !moment.Before(now) {
		return before, after, remedy.New(fmt.Errorf("%s is not past yet", at), "give the time of a change that has been made")
	}
	if length == 0 {
		length = now.Sub(moment)
	}
	return Period{moment.Add(-length), moment}, Period{moment, moment.Add(length)}, nil
}

func (p Period) String() string {
	layout := "2006-01-02 15:04"
	if length := p.To.Sub(p.From); !p.From.IsZero() && !p.To.IsZero() && length < 10*time.Minute {
		layout += ":05" // to minutes both ends could look the same
	}
	from, to := "the beginning", "now"
	if !p.From.IsZero() {
		from = p.From.Local().Format(layout)
	}
	if !p.To.IsZero() {
		to = p.To.Local().Format(layout)
	}
	return from + " to " + to
}
