package metrics

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"

	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/stats"
	"longhaul/test/nettest"
)

// What Prometheus 2.42 asks for, with native histograms and without, and newer ones.
const (
	acceptNative = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
	acceptOpen   = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
	acceptNewer  = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,*/*;q=0.2"
)

func TestNegotiation(t *testing.T) {
	for accept, want := range map[string]string{
		"": textType, "*/*": textType, "text/html, */*;q=0.1": textType, "application/json": textType, "nonsense;;": textType, "a/b;q=x": textType,
		"text/plain;version=0.0.4": textType, acceptNative: protobufType, acceptOpen: openMetricsType, acceptNewer: protobufType,
		"application/openmetrics-text":                                                                   openMetricsType,
		"application/openmetrics-text; version=2.0.0":                                                    textType,
		"application/vnd.google.protobuf":                                                                textType,
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text":          textType,
		"application/openmetrics-text;q=0":                                                               textType,
		"application/openmetrics-text;q=0.4, text/plain;q=0.5":                                           textType,
		"APPLICATION/OpenMetrics-Text; Version=1.0.0; charset=utf-8":                                     openMetricsType,
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=1": protobufType,
	} {
		if _, kind := scrape(t, handlerOf(everything()), accept); !strings.HasPrefix(kind, want+"; ") {
			t.Errorf("%q is answered with %q, want %q", accept, kind, want)
		}
	}
}

// parsed reads an answer with the real messages.
func parsed(t testing.TB, body string) (all []*dto.MetricFamily) {
	t.Helper()
	r := bytes.NewReader([]byte(body))
	for {
		var f dto.MetricFamily
		switch err := protodelim.UnmarshalFrom(r, &f); err {
		case nil:
			if unknown := f.ProtoReflect().GetUnknown(); len(unknown) > 0 {
				t.Errorf("%s has fields that there are not", f.GetName())
			}
			all = append(all, &f)
		case io.EOF:
			return all
		default:
			t.Fatal(err)
		}
	}
}

// series are all values of the families, as the text format writes them.
func series(all []*dto.MetricFamily) map[string]string {
	out := map[string]string{}
	for _, f := range all {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := func(suffix string, more ...string) string {
				if l := append(slices.Clone(labels), more...); len(l) > 0 {
					return f.GetName() + suffix + "{" + strings.Join(l, ",") + "}"
				}
				return f.GetName() + suffix
			}
			text := func(v float64) string { return string(number(nil, v)) }
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				out[name("")] = text(m.Counter.GetValue())
			case dto.MetricType_GAUGE:
				out[name("")] = text(m.Gauge.GetValue())
			case dto.MetricType_SUMMARY:
				for _, q := range m.Summary.Quantile {
					out[name("", fmt.Sprintf("quantile=%q", text(q.GetQuantile())))] = text(q.GetValue())
				}
				out[name("_sum")], out[name("_count")] = text(m.Summary.GetSampleSum()), text(float64(m.Summary.GetSampleCount()))
			case dto.MetricType_HISTOGRAM:
				h := m.Histogram
				out[name("_sum")], out[name("_count")] = text(h.GetSampleSum()), text(float64(h.GetSampleCount()))
				for _, b := range h.Bucket {
					out[name("_bucket", fmt.Sprintf("le=%q", text(b.GetUpperBound())))] = text(float64(b.GetCumulativeCount()))
				}
			}
		}
	}
	return out
}

// TestFormatsAgree: each format has every series with the same value, but for what changes between scrapes.
func TestFormatsAgree(t *testing.T) {
	h := handlerOf(everything())
	plainText, _ := scrape(t, h, "text/plain")
	openText, _ := scrape(t, h, acceptOpen)
	body, _ := scrape(t, h, acceptNative)
	lines := func(text string) map[string]string {
		out := map[string]string{}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " # ")
			at := strings.LastIndexByte(line, ' ')
			out[strings.NewReplacer(`quantile="0.0"`, `quantile="0"`, `quantile="1.0"`, `quantile="1"`).Replace(line[:at])] = line[at+1:]
		}
		return out
	}
	want := lines(plainText)
	if len(want) < 200 {
		t.Fatalf("%d series", len(want))
	}
	families := parsed(t, body)
	for format, got := range map[string]map[string]string{"OpenMetrics": lines(openText), "protobuf": series(families)} {
		for _, s := range slices.Sorted(maps.Keys(want)) {
			if v, is := got[s]; !is || v != want[s] && strings.HasPrefix(s, prefix) {
				t.Errorf("%s: %s is %q, want %q", format, s, v, want[s])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s has %d series, the text %d", format, len(got), len(want))
		}
	}
	for _, f := range families {
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
	}
}

// histogramIn is a histogram of an answer as the real messages have it.
func histogramIn(t *testing.T, families []*dto.MetricFamily, name string) *dto.Histogram {
	t.Helper()
	for _, f := range families {
		if f.GetName() == prefix+name {
			return f.Metric[0].GetHistogram()
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

// counts are the buckets of a native histogram by their numbers.
func counts(h *dto.Histogram) map[int]int64 {
	out := map[int]int64{}
	at, next, n := 0, 0, int64(0)
	for _, s := range h.PositiveSpan {
		at += int(s.GetOffset())
		for range s.GetLength() {
			n += h.PositiveDelta[next]
			next++
			if n != 0 {
				out[at] = n
			}
			at++
		}
	}
	return out
}

// TestNativeHistograms: the real messages have the buckets that were counted, however they are spread.
func TestNativeHistograms(t *testing.T) {
	for _, values := range [][]float64{
		{}, {0}, {1}, {1, 1, 1, 1.05, 1.1, 1.2, 1.4, 2, 4, 8, 1e9}, {1e-9, 1e-4, 3e-4, 70, 1e13}, slices.Repeat([]float64{3, 0.1}, 1000),
	} {
		s := everything()
		s.Tunnels[0].Duration = distributionOf(values...)
		body, _ := scrape(t, handlerOf(s), acceptNative)
		got, want := histogramIn(t, parsed(t, body), "flow_duration_seconds"), s.Tunnels[0].Duration
		wantCounts := map[int]int64{}
		for i, n := range want.Buckets {
			if n > 0 {
				wantCounts[want.First+i] = int64(n)
			}
		}
		if c := counts(got); !maps.Equal(c, wantCounts) || got.GetZeroCount() != want.Zero || got.GetSampleCount() != want.Count || got.GetSampleSum() != want.Sum {
			t.Errorf("%v: %v, zero %d, count %d, want %v", values, c, got.GetZeroCount(), got.GetSampleCount(), wantCounts)
		}
		if got.GetSchema() != stats.HistogramSchema || got.GetZeroThreshold() != stats.HistogramZero {
			t.Errorf("schema %d, zero threshold %v", got.GetSchema(), got.GetZeroThreshold())
		}
		if b := got.Bucket; len(b) != 1 || !math.IsInf(b[0].GetUpperBound(), 1) {
			t.Errorf("classic buckets: %v", b)
		} else if e := b[0].GetExemplar(); (e != nil) != (len(values) > 0) {
			t.Errorf("exemplar: %v", e)
		} else if e != nil && (e.Label[0].GetName() != "flow" || e.Label[0].GetValue() != name.String() || e.GetValue() != values[len(values)-1] || e.GetTimestamp().AsTime().UnixMilli() != 1_800_000_000_500) {
			t.Errorf("exemplar: %v", e)
		}
	}
}

// TestTunnelDetail: without series by hop, path and cause, one for each set of states, and one histogram of
// connects for each tunnel.
func TestTunnelDetail(t *testing.T) {
	h := Handler(Options{Snapshot: everything, Detail: func() Detail { return TunnelDetail }})
	body, _ := scrape(t, h, "text/plain")
	for _, want := range []string{
		`longhaul_tunnel_state{state="listening",tunnel="to-b"} 1`, `longhaul_hop_up{hop="b2.example:6000",tunnel="to-b"} 0`, `longhaul_hop_state{hop="b2.example:6000",state="down",tunnel="to-b"} 1`,
		`longhaul_leg_rtt_seconds{leg="target",stat="median",tunnel="to-b"} 0.002`, `longhaul_connect_seconds_count{tunnel="to-b"} 4`,
		`longhaul_pair_problem{peer="site-c",problem="key-unknown",tunnel="to-c"} 1`,
	} {
		if !strings.Contains(body, "\n"+want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
	for _, never := range []string{
		`state="drained"`, `longhaul_hop_rtt_seconds`, `longhaul_pair_path_up`, `stat="p99"`, `cause=`, `longhaul_connect_seconds_count{hop`, `problem="path-down",tunnel`,
	} {
		if strings.Contains(body, never) {
			t.Errorf("%s is shown", never)
		}
	}
	native, _ := scrape(t, h, acceptNative)
	if c := histogramIn(t, parsed(t, native), "connect_seconds"); c.GetSampleCount() != 4 || c.GetZeroCount() != 1 {
		t.Errorf("connects of all hops: %v", c)
	}
}

// TestStrictParser has the parser of OpenMetrics of Python's prometheus_client read what it refuses to read if
// names collide, types and samples do not fit, or an exemplar is where none may be.
func TestStrictParser(t *testing.T) {
	python := nettest.RequireProgram(t, "/usr/bin/python3", "python3-prometheus-client")
	const read = `
import sys
try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError:
    sys.exit(7)
families = list(text_string_to_metric_families(sys.stdin.read()))
for f in families:
    for s in f.samples:
        if s.exemplar:
            print(s.name, s.exemplar.labels["flow"], float(s.exemplar.value), float(s.exemplar.timestamp))
print(len(families), sum(len(f.samples) for f in families))
`
	for _, s := range []*monitor.Snapshot{everything(), odd()} {
		body, _ := scrape(t, handlerOf(s), acceptOpen)
		cmd := exec.Command(python, "-c", read)
		cmd.Stdin = strings.NewReader(body)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() == 7 {
			nettest.RequireProgram(t, "prometheus_client of /usr/bin/python3", "python3-prometheus-client")
		}
		if err != nil {
			t.Fatalf("%v: %s\n%s", err, out, body)
		}
		if want := "longhaul_flow_duration_seconds_bucket " + name.String() + " 7000.0 1800000000.5\n"; !strings.Contains(string(out), want) {
			t.Errorf("it reads %s", out)
		}
	}
}

// odd has names that need to be written in another way.
func odd() *monitor.Snapshot {
	s := everything()
	s.Tunnels[0].Name = "a\xff\"\n{b}\\ü"
	return s
}
