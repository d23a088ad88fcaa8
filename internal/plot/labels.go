package plot

import (
	"math"
	"slices"
)

// label names a line where it ends, at the right of the panel.
type label struct {
	text   string
	series string  // whose colour it has; empty for a level
	x, at  float64 // where the line ends
	y      float64 // where the label stands
}

// labelDistance is between the baselines of two labels, in pixels.
const labelDistance = 13.0

// ends are the labels of a panel, each at its line's own height.
func (p Panel) ends(fr frame) []label {
	var labels []label
	for _, s := range p.Series {
		for _, point := range slices.Backward(s.Points) {
			if !math.IsNaN(point.Y) && fr.ys.within(point.Y) && fr.xs.within(point.X) {
				at := fr.py(point.Y)
				labels = append(labels, label{text: s.Name, series: s.Name, x: fr.px(point.X), at: at, y: at})
				break
			}
		}
	}
	for _, l := range p.Levels {
		if fr.ys.within(l.Y) {
			at := fr.py(l.Y)
			labels = append(labels, label{text: l.Name, x: fr.x + fr.width, at: at, y: at})
		}
	}
	return labels
}

// place moves labels apart, each as little as it must, within top and bottom
// as far as all of them fit. Neighbours that collide form a block around the
// mean of their wishes, which may collide with the next block in turn.
func place(labels []label, top, bottom float64) []label {
	slices.SortStableFunc(labels, func(a, b label) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	type block struct {
		first, n int
		y        float64 // of its first label
	}
	var blocks []block
	settle := func(b block) block {
		sum := 0.0
		for i := range b.n {
			sum += labels[b.first+i].at - float64(i)*labelDistance
		}
		b.y = sum / float64(b.n)
		b.y = max(min(b.y, bottom-float64(b.n-1)*labelDistance), top)
		return b
	}
	for i := range labels {
		last := settle(block{first: i, n: 1})
		for len(blocks) > 0 {
			before := blocks[len(blocks)-1]
			if before.y+float64(before.n)*labelDistance <= last.y {
				break
			}
			blocks = blocks[:len(blocks)-1]
			last = settle(block{first: before.first, n: before.n + last.n})
		}
		blocks = append(blocks, last)
	}
	for _, b := range blocks {
		for i := range b.n {
			labels[b.first+i].y = b.y + float64(i)*labelDistance
		}
	}
	return labels
}
