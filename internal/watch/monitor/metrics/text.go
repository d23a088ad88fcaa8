package metrics

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// kind is the type of a metric.
type kind string

const (
	gauge   kind = "gauge"
	counter kind = "counter"
)

// text writes metrics in Prometheus' text format, version 0.0.4.
type text struct{ bytes.Buffer }

const contentType = "text/plain; version=0.0.4; charset=utf-8"

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// family begins a metric.
func (t *text) family(name, help string, k kind) {
	t.WriteString("# HELP " + name + " " + helpEscapes.Replace(help) + "\n# TYPE " + name + " " + string(k) + "\n")
}

// sample writes a value.
func (t *text) sample(name string, labels, values []string, v float64) {
	t.WriteString(name)
	for i, label := range labels {
		t.WriteByte("{,"[min(i, 1)])
		t.WriteString(label + `="`)
		_, _ = labelEscapes.WriteString(t, strings.ToValidUTF8(values[i], "?"))
		t.WriteByte('"')
	}
	if len(labels) > 0 {
		t.WriteByte('}')
	}
	t.WriteByte(' ')
	t.Write(strconv.AppendFloat(t.AvailableBuffer(), v, 'g', -1, 64))
	t.WriteByte('\n')
}

// single writes a metric without labels.
func (t *text) single(name, help string, k kind, v float64) {
	t.family(name, help, k)
	t.sample(name, nil, nil, v)
}

// writeFamilies writes the metrics of a state. A metric without values is omitted. Labels are in
// the order of their names, as everywhere in Prometheus.
func writeFamilies(t *text, s *state) {
	for _, f := range families {
		labels := slices.Sorted(slices.Values(f.labels))
		begun, ordered := false, make([]string, len(labels))
		f.collect(s, func(v float64, values ...string) {
			if !begun {
				begun = true
				t.family(prefix+f.name, f.help, f.kind)
			}
			for i, label := range labels {
				ordered[i] = values[slices.Index(f.labels, label)]
			}
			t.sample(prefix+f.name, labels, ordered, v)
		})
	}
}
