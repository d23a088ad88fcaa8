package history

import (
	"cmp"
	"context"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/words/sorted"
)

// Matrix is of the records of a period that are kept: a line for each relay and peer.
func (r *Reader) Matrix(ctx context.Context, p Period, _ int) (Matrix, error) {
	m := Matrix{Period: p, Lines: []MatrixLine{}, QuantileError: RecordsError}
	err := r.look(ctx, func(v *view) error {
		c := v.choice(p.Since, p.Until, Selection{}, "")
		whole, err := v.covers(c.span)
		if err != nil {
			return err
		}
		if first, err := v.factsFrom(1); err == nil && !whole {
			m.Period.Since = time.UnixMilli(first.endMs).UTC()
		}
		lines, err := v.matrixLines(c, p.MinBytes)
		if err != nil {
			return err
		}
		for ends, a := range lines {
			line := MatrixLine{
				From: v.words[ends.relay], To: cmp.Or(flow.SiteOf(v.words[ends.peer]), v.words[ends.peer]),
				Flows: a.flows, Transfers: a.time.count, BytesUp: a.up, BytesDown: a.down, RetransmittedShare: a.retransmittedShare(),
				GoodputMedian: a.goodput.quantile(.5), GoodputP99: a.goodput.quantile(.99), TimeMedian: a.time.quantile(.5), TimeP99: a.time.quantile(.99),
			}
			m.Lines = append(m.Lines, line)
		}
		return nil
	})
	m.Sort()
	return m, err
}

// lineEnds are the words of a relay and its peer, 0 where there is none.
type lineEnds struct{ relay, peer int64 }

// matrixLines adds up the records whose client is on this relay's side.
func (v *view) matrixLines(c choice, minBytes int64) (map[lineEnds]*aggregate, error) {
	ends := "0, 0"
	if v.has.names {
		// Hosts of one site are one line: the word of the site stands for them.
		ends = "ifnull(relay_id, 0), ifnull(peer_id, 0)"
	}
	bySite := map[string]int64{}
	lines := map[lineEnds]*aggregate{}
	r := newRowReader(factLen + 2)
	err := v.each("SELECT "+factColumns+", "+ends+" FROM records WHERE client_side_id IS NOT ? AND end_ms >= ? AND end_ms < ?",
		[]any{v.id("wan"), c.from, c.to}, func(row scanner) error {
			if err := r.scan(row); err != nil {
				return err
			}
			f, _ := readFacts(r)
			at := lineEnds{r.count(0), r.count(0)}
			if err := r.err(); err != nil {
				return err
			}
			if site := flow.SiteOf(v.words[at.peer]); site != "" {
				if bySite[site] == 0 {
					bySite[site] = at.peer
				}
				at.peer = bySite[site]
			}
			if lines[at] == nil {
				lines[at] = newAggregate(fine)
			}
			lines[at].add(&f, minBytes)
			return nil
		})
	return lines, err
}

// Sort puts the lines with the most bytes first.
func (m *Matrix) Sort() {
	sorted.By(m.Lines, func(a, b MatrixLine) int {
		return cmp.Or(cmp.Compare(b.BytesUp+b.BytesDown, a.BytesUp+a.BytesDown), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
}
