package metrics

import (
	"bytes"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"

	"longhaul/internal/watch/monitor"
)

// kind is the type of a metric.
type kind string

const (
	gauge     kind = "gauge"
	counter   kind = "counter"
	summary   kind = "summary"
	histogram kind = "histogram"
)

// exposition is one of the formats in which metrics are exposed. A family is begun, gets its samples, and ends.
// Labels and their values are in the order of the labels' names, as everywhere in Prometheus.
type exposition interface {
	begin(name, help string, k kind)
	sample(labels, values []string, v float64)
	quantiles(of, values []float64, sum float64, count uint64) // of a summary
	distribution(labels, values []string, d *monitor.Distribution)
	end()
	// finish returns all families, and the media type.
	finish() (body []byte, contentType string)
}

// Media types. The parameters of Prometheus' own are in its documentation of exposition formats.
const (
	textType        = "text/plain"
	openMetricsType = "application/openmetrics-text"
	protobufType    = "application/vnd.google.protobuf"
	metricFamily    = "io.prometheus.client.MetricFamily"
)

// negotiate returns the format that a client prefers (RFC 9110, section 12.5.1): text unless it names another one.
// It has room for some bytes.
func negotiate(accept []string, room int) exposition {
	best, chosen := 0.0, textType
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, of, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		weight := 1.0
		if q, err := strconv.ParseFloat(of["q"], 64); err == nil {
			weight = q
		}
		if weight > best && serves(kind, of) {
			best, chosen = weight, kind
		}
	}
	switch chosen {
	case protobufType:
		return &protobuf{out: make([]byte, 0, room)}
	case openMetricsType:
		return &text{Buffer: *bytes.NewBuffer(make([]byte, 0, room)), open: true, begun: map[string]bool{}}
	}
	return &text{Buffer: *bytes.NewBuffer(make([]byte, 0, room))}
}

// serves reports whether a media range names a format that this package writes.
func serves(kind string, of map[string]string) bool {
	switch version := of["version"]; kind {
	case protobufType:
		return of["proto"] == metricFamily && of["encoding"] == "delimited"
	case openMetricsType:
		return version == "" || version == "1.0.0"
	case textType:
		return version == "" || version == "0.0.4"
	}
	return kind == "*/*" || kind == "text/*"
}

// single writes a metric without labels.
func single(e exposition, name, help string, k kind, v float64) {
	e.begin(name, help, k)
	e.sample(nil, nil, v)
	e.end()
}

// order is how the labels that a family emits become those of the exposition.
type order struct {
	labels []string // sorted
	index  []int    // of each among those that are emitted
	values []string // room
}

func newOrder(labels []string) *order {
	o := &order{labels: slices.Sorted(slices.Values(labels)), values: make([]string, len(labels))}
	for _, label := range o.labels {
		o.index = append(o.index, slices.Index(labels, label))
	}
	return o
}

// of returns values in the order of labels, until the next call.
func (o *order) of(values []string) []string {
	for i, from := range o.index {
		o.values[i] = values[from]
	}
	return o.values
}

// emitter writes the samples of a family. It keeps no label, so that none of them is allocated.
type emitter struct {
	*family
	to      exposition
	order   *order
	begun   bool
	holding bool // leaves out what is 0
}

// add writes a sample with the values of the family's labels.
func (e *emitter) add(v float64, values ...string) {
	if e.holding && v == 0 {
		return
	}
	if !e.begun {
		e.begun = true
		e.to.begin(prefix+e.name, e.help, e.kind)
	}
	e.to.sample(e.order.labels, e.order.of(values), v)
}

// writeFamilies writes the metrics of a state. A metric without values is omitted.
func writeFamilies(e exposition, s *state) {
	for i := range families {
		f := emitter{to: e, family: &families[i], order: newOrder(families[i].labels)}
		f.collect(s, &f)
		if f.begun {
			e.end()
		}
	}
	for i := range histogramFamilies {
		f := &histogramFamilies[i]
		o, begun := newOrder(f.labels), false
		f.collect(s, func(d *monitor.Distribution, values ...string) {
			if !begun {
				begun = true
				e.begin(prefix+f.name, f.help, histogram)
			}
			e.distribution(o.labels, o.of(values), d)
		})
		if begun {
			e.end()
		}
	}
}

// number is a float as all text formats have it.
func number(b []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1e6 { // most are
		return strconv.AppendInt(b, int64(v), 10)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}
