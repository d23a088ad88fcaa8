package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// collector turns the latest snapshot into metrics at each scrape.
type collector struct {
	opts  Options
	words *vocabularies
	descs []*prometheus.Desc // of families
}

func newCollector(opts Options) *collector {
	c := &collector{opts: opts, words: newVocabularies()}
	for _, f := range families {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+f.name, f.help, f.labels, nil))
	}
	return c
}

// Describe sends the descriptions of all metrics.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect sends the metrics of the latest snapshot.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := state{Snapshot: c.opts.Snapshot(), vocabularies: c.words}
	if c.opts.History != nil {
		s.history = c.opts.History()
	}
	for i, f := range families {
		f.collect(&s, func(v float64, labels ...string) {
			for i, l := range labels {
				labels[i] = strings.ToValidUTF8(l, "?")
			}
			metric, err := prometheus.NewConstMetric(c.descs[i], f.kind, v, labels...)
			if err != nil {
				metric = prometheus.NewInvalidMetric(c.descs[i], err)
			}
			to <- metric
		})
	}
}

var _ prometheus.Collector = (*collector)(nil)
