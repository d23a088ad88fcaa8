package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/postgres"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
)

// relays is how many ship to the database, each with a tunnel to every other one.
const relays = 50

// fillAtOnce is a delivery of one relay.
const fillAtOnce = 2000

// askDatabase times the questions to a database of many relays.
func askDatabase(ctx context.Context, url string, records, runs int, over time.Duration, stdout io.Writer) error {
	to, err := archive.ParseTarget(url)
	if err != nil {
		return err
	}
	if _, err := postgres.MakeSchema(ctx, to, postgres.SchemaOptions{}); err != nil {
		return err
	}
	db, err := postgres.OpenReader(to, postgres.ReaderOptions{Patience: 10 * time.Minute, OfUser: true})
	if err != nil {
		return err
	}
	defer db.Close()
	newest, err := db.Query(ctx, history.Query{Limit: 1})
	if err == nil && len(newest) == 0 {
		if err = fillDatabase(ctx, to, records, over, stdout); err == nil {
			newest, err = db.Query(ctx, history.Query{Limit: 1})
		}
	}
	if err != nil {
		return err
	}
	extent, err := db.Extent(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d records, %.1f GB on disk\n\n", extent.Records, float64(extent.Bytes)/1e9)
	last := newest[0]
	week := history.Period{Since: last.End.UTC().Truncate(24*time.Hour).AddDate(0, 0, -6)}
	before := history.Period{Since: week.Since.AddDate(0, 0, -7), Until: week.Since}
	client := history.Selection{Client: netip.PrefixFrom(last.Client.Addr(), last.Client.Addr().BitLen())}
	list := func(name string, q history.Query) question {
		return question{name, func() (int, error) {
			all, err := db.Query(ctx, q)
			return len(all), err
		}}
	}
	matrix := func(name string, p history.Period, most int) question {
		return question{name, func() (int, error) {
			m, err := db.Matrix(ctx, p, most)
			return len(m.Lines), err
		}}
	}
	_, err = timed([]question{
		list("newest 20", history.Query{Limit: 20}),
		list("one client's newest 20", history.Query{Limit: 20, Selection: client}),
		list("a flow's name", history.Query{Name: last.Name}),
		list("slowest of a day", history.Query{Order: history.Slowest, Since: last.End.Add(-24 * time.Hour)}),
		list("slowest of a week", history.Query{Order: history.Slowest, Since: week.Since}),
		matrix("matrix of a week, 40 lines", week, 40),
		matrix("matrix of everything, 40 lines", history.Period{}, 40),
		matrix("matrix of a week, all lines", week, 0),
		matrix("matrix of everything, all lines", history.Period{}, 0),
		{"summary of a week", func() (int, error) {
			s, err := db.Summary(ctx, week, history.Selection{})
			return int(s.Flows), err
		}},
		{"summary of a week, one relay", func() (int, error) {
			s, err := db.Summary(ctx, week, history.Selection{Relay: last.Relay})
			return int(s.Flows), err
		}},
		{"two weeks compared", func() (int, error) {
			c, err := db.Compare(ctx, before, week, history.Selection{})
			return int(c.Before.Flows + c.After.Flows), err
		}},
		{"chart of a day", func() (int, error) {
			c, err := db.Series(ctx, history.Period{Since: last.End.Add(-24 * time.Hour), Until: last.End}, history.Selection{})
			return len(c.Points), err
		}},
		{"chart of a week", func() (int, error) {
			c, err := db.Series(ctx, history.Period{Since: week.Since, Until: last.End}, history.Selection{})
			return len(c.Points), err
		}},
	}, runs, stdout)
	return err
}

// fillDatabase ships the records of all relays, day by day.
func fillDatabase(ctx context.Context, to archive.Target, records int, over time.Duration, stdout io.Writer) error {
	sink, err := postgres.Open(to)
	if err != nil {
		return err
	}
	defer sink.Close()
	makers := make([]*synthetic.Maker, relays)
	for n := range makers {
		makers[n] = synthetic.NewMaker(uint64(n + 1))
	}
	began, begin, step := time.Now(), time.Now().Add(-over), over/time.Duration(records)
	for done := 0; done < records; {
		round := done
		for n := range relays {
			rows := make([]archive.Row, 0, fillAtOnce)
			for i := range min(fillAtOnce, records-done) {
				r := makers[n].Record(begin.Add(time.Duration(min(round+i*relays+n, records)) * step))
				other := (n + 1 + i%(relays-1)) % relays
				r.ID, r.Relay = int64(r.Flow), fmt.Sprintf("relay-%d.example.net", n)
				r.Tunnel, r.Site, r.Peer = fmt.Sprintf("to-%d", other), fmt.Sprintf("site-%d", other), fmt.Sprintf("site-%d/b1", other)
				rows = append(rows, archive.Row{Record: r, Epoch: int64(n + 1), OwnSite: fmt.Sprintf("site-%d", n)})
			}
			if err := sink.Deliver(ctx, rows); err != nil {
				return err
			}
			done += len(rows)
		}
	}
	fmt.Fprintf(stdout, "%d records shipped in %.0f s\n", records, time.Since(began).Seconds())
	return nil
}
