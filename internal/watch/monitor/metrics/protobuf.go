package metrics

import (
	"encoding/binary"
	"math"
	"strings"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/stats"
)

// protobuf writes metrics as messages MetricFamily of Prometheus' metrics.proto, each behind its length. The
// fields' numbers below are those of that file, and the encoding is that of
// https://protobuf.dev/programming-guides/encoding. It alone has native histograms.
type protobuf struct {
	out    []byte
	family []byte // the one that is written
	metric []byte // room for a metric, and for what is within it
	value  []byte
	inner  []byte
	bucket []byte
	deltas []byte
	kind   kind
}

// types are the numbers of MetricType, and the field of Metric that has a value of the type.
var types = map[kind]struct{ number, field uint64 }{counter: {0, 3}, gauge: {1, 2}, summary: {2, 4}, histogram: {4, 7}}

// Wire types.
const (
	varint  = 0
	fixed64 = 1
	lengthy = 2 // strings, messages, packed lists
)

func appendTag(b []byte, field, wire uint64) []byte { return binary.AppendUvarint(b, field<<3|wire) }

func appendUint(b []byte, field, v uint64) []byte {
	return binary.AppendUvarint(appendTag(b, field, varint), v)
}

// zigzag is how sint32 and sint64 are encoded.
func zigzag(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

func appendDouble(b []byte, field uint64, v float64) []byte {
	return binary.LittleEndian.AppendUint64(appendTag(b, field, fixed64), math.Float64bits(v))
}

// appendLengthy appends a string, a message or a packed list.
func appendLengthy[T string | []byte](b []byte, field uint64, v T) []byte {
	return append(binary.AppendUvarint(appendTag(b, field, lengthy), uint64(len(v))), v...)
}

func appendText(b []byte, field uint64, s string) []byte {
	if !plain(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	return appendLengthy(b, field, s)
}

func (p *protobuf) begin(name, help string, k kind) {
	p.kind = k
	p.family = appendText(p.family[:0], 1, name)
	p.family = appendText(p.family, 2, help)
	p.family = appendUint(p.family, 3, types[k].number)
}

func (p *protobuf) end() {
	p.out = append(binary.AppendUvarint(p.out, uint64(len(p.family))), p.family...)
}

// appendLabel appends a LabelPair.
func (p *protobuf) appendLabel(b []byte, field uint64, name, value string) []byte {
	p.inner = appendText(appendLengthy(p.inner[:0], 1, name), 2, value)
	return appendLengthy(b, field, p.inner)
}

// add ends a metric, whose value is in p.value.
func (p *protobuf) add(labels, values []string) {
	p.metric = p.metric[:0]
	for i := range labels {
		if values[i] != "" {
			p.metric = p.appendLabel(p.metric, 1, labels[i], values[i])
		}
	}
	p.metric = appendLengthy(p.metric, types[p.kind].field, p.value)
	p.family = appendLengthy(p.family, 4, p.metric)
}

func (p *protobuf) sample(labels, values []string, v float64) {
	p.value = appendDouble(p.value[:0], 1, v)
	p.add(labels, values)
}

func (p *protobuf) quantiles(of, values []float64, sum float64, count uint64) {
	p.value = appendDouble(appendUint(p.value[:0], 1, count), 2, sum)
	for i := range of {
		p.inner = appendDouble(appendDouble(p.inner[:0], 1, of[i]), 2, values[i])
		p.value = appendLengthy(p.value, 3, p.inner)
	}
	p.add(nil, nil)
}

// distribution writes a native histogram. It also has the one bucket of all values that the text formats have:
// there Prometheus 2.42 looks for exemplars.
func (p *protobuf) distribution(labels, values []string, d *monitor.Distribution) {
	p.value = appendDouble(appendUint(p.value[:0], 1, d.Count), 2, d.Sum)
	p.bucket = appendDouble(appendUint(p.bucket[:0], 1, d.Count), 2, math.Inf(1))
	if e := &d.Exemplar; !e.Flow.IsZero() {
		p.metric = appendDouble(p.appendLabel(p.metric[:0], 1, "flow", e.Flow.String()), 2, e.Value)
		p.inner = appendUint(appendUint(p.inner[:0], 1, uint64(e.At.Unix())), 2, uint64(e.At.Nanosecond())) // a Timestamp
		p.bucket = appendLengthy(p.bucket, 3, appendLengthy(p.metric, 3, p.inner))
	}
	p.value = appendLengthy(p.value, 3, p.bucket)
	p.value = appendUint(p.value, 5, zigzag(stats.HistogramSchema))
	p.value = appendDouble(p.value, 6, stats.HistogramZero)
	p.value = appendUint(p.value, 7, d.Zero)
	p.appendSpans(d.Histogram)
	p.value = appendLengthy(p.value, 13, p.deltas)
	p.add(labels, values)
}

// maxGap is how many empty buckets a span may have: a new span takes as many bytes.
const maxGap = 2

// appendSpans appends the spans of a histogram's buckets, and leaves in deltas the buckets' differences in count. The
// offset of the first span is its first bucket, that of another one the distance to the span before.
func (p *protobuf) appendSpans(h *stats.Histogram) {
	p.deltas = p.deltas[:0]
	end, last := 0, uint64(0) // of the span before: the bucket behind it, its last count
	for i := 0; i < len(h.Buckets); {
		if h.Buckets[i] == 0 {
			i++
			continue
		}
		begin, stop := i, i+1 // behind the last bucket that counts
		for i = stop; i < len(h.Buckets) && i-stop <= maxGap; i++ {
			if h.Buckets[i] > 0 {
				stop = i + 1
			}
		}
		for _, n := range h.Buckets[begin:stop] {
			p.deltas = binary.AppendUvarint(p.deltas, zigzag(int64(n-last)))
			last = n
		}
		p.inner = appendUint(appendUint(p.inner[:0], 1, zigzag(int64(h.First+begin-end))), 2, uint64(stop-begin))
		p.value = appendLengthy(p.value, 12, p.inner)
		end, i = h.First+stop, stop
	}
}

func (p *protobuf) finish() (body []byte, contentType string) {
	return p.out, protobufType + "; proto=" + metricFamily + "; encoding=delimited"
}
