package history

import (
	"context"
	"time"

	"longhaul/internal/words/units"
)

// chartPoints is about how many points a chart has.
const chartPoints = 120

// chartSteps are the lengths of a chart's steps, in seconds.
var chartSteps = []int64{60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000}

// Series is the course of a period for charts: what was carried, and how the
// flows did that ended.
func (r *Reader) Series(ctx context.Context, p Period, of Selection) (Chart, error) {
	var chart Chart
	err := r.look(ctx, func(v *view) (err error) {
		chart, err = v.chart(p, of)
		return err
	})
	return chart, err
}

func (v *view) chart(p Period, of Selection) (Chart, error) {
	chart := Chart{Selection: of, Points: []Point{}}
	p, known, err := v.bounded(p)
	if err != nil || !known {
		return chart, err
	}
	chart.Period = p
	if !p.Until.After(p.Since) {
		return chart, nil
	}
	c, err := v.newCourse(p, of)
	if err != nil {
		return chart, err
	}
	chart.Step = units.Seconds(time.Duration(c.step) * time.Second)
	if err := c.fill(); err != nil {
		return chart, err
	}
	for i := range c.points {
		chart.Points = append(chart.Points, c.point(i))
	}
	return chart, nil
}

// bounded gives a period without bounds those of what is known, if anything is.
func (v *view) bounded(p Period) (_ Period, known bool, err error) {
	if p.Until.IsZero() {
		p.Until = time.Now()
	}
	if p.Since.IsZero() {
		var first *int64
		if err := v.tx.QueryRowContext(v.ctx, "SELECT min(at) FROM hours").Scan(&first); err != nil || first == nil {
			return p, false, err
		}
		p.Since = time.Unix(*first, 0)
	}
	return p, true, nil
}

// course is a chart while its points are filled.
type course struct {
	v        *view
	choice   choice
	minBytes int64
	from, to int64 // seconds, in whole steps
	step     int64 // seconds
	points   []coursePoint

	minutes   bool // minutes of the whole period are there
	hoursDone bool // hours say what ended: no record is needed
	narrow    bool // records alone say anything
}

// coursePoint is what a step carried, and the flows that ended in it.
type coursePoint struct {
	up, down int64
	ended    *aggregate
}

// newCourse chooses the steps of a period, and where their figures come from.
func (v *view) newCourse(p Period, of Selection) (*course, error) {
	c := &course{v: v, choice: v.choice(p.Since, p.Until, of, ""), minBytes: p.MinBytes, narrow: of.narrow()}
	c.step = ChartStep(p.Until.Sub(p.Since))
	whole, err := v.covers(c.choice.span)
	if err == nil && c.narrow && !whole {
		err = ErrDisplaced
	}
	if err != nil {
		return nil, err
	}
	var firstMinute, firstHour *int64
	err = v.tx.QueryRowContext(v.ctx, "SELECT (SELECT min(at) FROM minutes), (SELECT min(at) FROM hours)").Scan(&firstMinute, &firstHour)
	if err != nil {
		return nil, err
	}
	// Minutes are kept for some days only. Before that, flows of which there are
	// records are laid evenly over their lives; of others hours are all there is.
	c.minutes = !c.narrow && firstMinute != nil && (*firstMinute <= p.Since.Unix() || floor(*firstMinute, hour) == *firstHour)
	if !whole && !c.minutes {
		c.step = max(c.step, hour)
	}
	c.hoursDone = !c.narrow && c.step >= hour && (!whole || p.MinBytes <= 1)
	c.from, c.to = c.choice.seconds(c.step)
	c.points = make([]coursePoint, (c.to-c.from)/c.step)
	for i := range c.points {
		c.points[i].ended = newAggregate(coarse)
	}
	return c, nil
}

// ChartStep returns the seconds of a step in a period of this length.
func ChartStep(length time.Duration) int64 {
	seconds := int64(length / time.Second)
	for _, s := range chartSteps {
		if seconds <= s*chartPoints {
			return s
		}
	}
	return chartSteps[len(chartSteps)-1]
}

func (c *course) fill() error {
	var err error
	switch {
	case c.narrow:
	case c.step >= hour:
		err = c.fromHours()
	case c.minutes:
		err = c.fromMinutes()
	}
	if err != nil || c.hoursDone {
		return err
	}
	return c.fromRecords()
}

// at is the index of the step with a second.
func (c *course) at(second int64) int { return int((second - c.from) / c.step) }

// carry adds bytes to the step with a second, if the course has one.
func (c *course) carry(second, up, down int64) {
	if i := c.at(second); i >= 0 && i < len(c.points) {
		c.points[i].up += up
		c.points[i].down += down
	}
}

// fromMinutes adds what minutes carried.
func (c *course) fromMinutes() error {
	return c.v.each("SELECT at, bytes_up, bytes_down FROM minutes WHERE at >= ? AND at < ? AND (? = 0 OR tunnel = ?)",
		[]any{c.from, c.to, c.choice.tunnel, c.choice.tunnel}, func(row scanner) error {
			var second, up, down int64
			if err := row.Scan(&second, &up, &down); err != nil {
				return err
			}
			c.carry(second, up, down)
			return nil
		})
}

// fromHours adds what hours carried, and the flows that ended in them unless records have these.
func (c *course) fromHours() error {
	return c.v.hours(c.choice, c.hoursDone, func(second, up, down int64, ended []byte) error {
		c.carry(second, up, down)
		if i := c.at(second); len(ended) > 0 && i >= 0 && i < len(c.points) {
			return c.points[i].ended.read(ended)
		}
		return nil
	})
}

// fromRecords adds the flows that ended, and what they carried where nothing else says it.
func (c *course) fromRecords() error {
	whole := c.choice
	whole.span = span{c.from * 1000, c.to * 1000}
	return c.v.scan(whole, func(f *facts) {
		c.points[c.at(floor(f.endMs, 1000)/1000)].ended.add(f, c.minBytes)
		if c.narrow || c.step < hour && !c.minutes {
			c.spread(f)
		}
	}, nil)
}

// spread lays a flow's bytes evenly over the steps of its life.
func (c *course) spread(f *facts) {
	begin, end := floor(floor(f.endMs-f.elapsedUs/1000, 1000)/1000, c.step), floor(f.endMs/1000, c.step)
	steps := (end-begin)/c.step + 1
	for i := max(c.at(begin), 0); i <= c.at(end); i++ {
		c.points[i].up += f.up / steps
		c.points[i].down += f.down / steps
	}
}

// point returns a point of the chart.
func (c *course) point(i int) Point {
	p := c.points[i]
	a := p.ended
	return Point{
		At:    time.Unix(c.from+int64(i)*c.step, 0).UTC(),
		UpBps: float64(p.up) * 8 / float64(c.step), DownBps: float64(p.down) * 8 / float64(c.step),
		Flows: a.flows, Transfers: a.time.count, RetransmittedShare: a.retransmittedShare(),
		TransferTimeMedian: a.time.quantile(.5), TransferTimeP95: a.time.quantile(.95), GoodputMedian: a.goodput.quantile(.5),
	}
}
