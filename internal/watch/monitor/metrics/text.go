package metrics

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"longhaul/internal/watch/monitor"
)

// text writes metrics in Prometheus' text format, version 0.0.4, or as OpenMetrics 1.0. Neither has native
// histograms: there a histogram has one bucket, of all values, beside sum and count.
type text struct {
	bytes.Buffer
	open  bool            // OpenMetrics
	begun map[string]bool // names of families of OpenMetrics
	name  string          // of the family's samples
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// unitSuffixes are what OpenMetrics declares of a family by the end of its name.
var unitSuffixes = []string{"bytes_per_second", "seconds", "bytes", "ratio"}

func (t *text) begin(name, help string, k kind) {
	t.name = name
	escapes := helpEscapes
	if t.open {
		escapes = labelEscapes
		if k == counter {
			name = strings.TrimSuffix(name, "_total")
		}
		if t.begun[name] { // Go's runtime has a gauge and a counter of one name
			name, k = t.name, "unknown"
		}
		t.begun[name] = true
		for _, unit := range unitSuffixes {
			if strings.HasSuffix(name, "_"+unit) {
				t.WriteString("# UNIT " + name + " " + unit + "\n")
				break
			}
		}
	}
	t.WriteString("# HELP " + name + " " + escapes.Replace(help) + "\n# TYPE " + name + " " + string(k) + "\n")
}

func (t *text) end() {}

func (t *text) sample(labels, values []string, v float64) { t.line("", labels, values, "", "", v) }

// line writes a sample, with one more label if it has a name.
func (t *text) line(suffix string, labels, values []string, more, is string, v float64) {
	t.start(suffix, labels, values, more, is)
	t.Write(number(t.AvailableBuffer(), v))
	t.WriteByte('\n')
}

func (t *text) start(suffix string, labels, values []string, more, is string) {
	t.WriteString(t.name)
	t.WriteString(suffix)
	before := byte('{')
	label := func(name, value string) {
		t.WriteByte(before)
		before = ','
		t.WriteString(name)
		t.WriteString(`="`)
		if plain(value) {
			t.WriteString(value)
		} else {
			_, _ = labelEscapes.WriteString(t, strings.ToValidUTF8(value, "?"))
		}
		t.WriteByte('"')
	}
	for i := range labels {
		if values[i] != "" { // an empty label is none
			label(labels[i], values[i])
		}
	}
	if more != "" {
		label(more, is)
	}
	if before == ',' {
		t.WriteByte('}')
	}
	t.WriteByte(' ')
}

// plain reports that a value is the same in text.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func (t *text) quantiles(of, values []float64, sum float64, count uint64) {
	for i, q := range of {
		label := strconv.FormatFloat(q, 'g', -1, 64)
		if t.open && q == math.Trunc(q) {
			label += ".0" // canonical there
		}
		t.line("", nil, nil, "quantile", label, values[i])
	}
	t.line("_sum", nil, nil, "", "", sum)
	t.line("_count", nil, nil, "", "", float64(count))
}

func (t *text) distribution(labels, values []string, d *monitor.Distribution) {
	t.start("_bucket", labels, values, "le", "+Inf")
	t.Write(strconv.AppendUint(t.AvailableBuffer(), d.Count, 10))
	if e := d.Exemplar; t.open && !e.Flow.IsZero() {
		t.WriteString(` # {flow="` + e.Flow.String() + `"} `)
		t.Write(number(t.AvailableBuffer(), e.Value))
		t.WriteByte(' ')
		t.Write(strconv.AppendFloat(t.AvailableBuffer(), float64(e.At.UnixMilli())/1e3, 'f', 3, 64))
	}
	t.WriteByte('\n')
	t.line("_sum", labels, values, "", "", d.Sum)
	t.line("_count", labels, values, "", "", float64(d.Count))
}

func (t *text) finish() (body []byte, contentType string) {
	if t.open {
		t.WriteString("# EOF\n")
		return t.Bytes(), openMetricsType + "; version=1.0.0; charset=utf-8"
	}
	return t.Bytes(), textType + "; version=0.0.4; charset=utf-8"
}
