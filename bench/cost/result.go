package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/internal/words/stats"
)

// result is what the program prints as JSON.
type result struct {
	Machine  string           `json:"machine"`
	Kernel   string           `json:"kernel"`
	CPUs     int              `json:"cpus"`
	Threads  int              `json:"threads"`
	Repeat   int              `json:"repeat"`
	TimeS    float64          `json:"time_s"`
	Relays   []relayName      `json:"relays"`
	Measures []*measureResult `json:"measures"`
	Changes  []change         `json:"changes,omitempty"`
}

type relayName struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Note    string `json:"note,omitempty"`
}

// measureResult holds the values of one measure, by relay and metric.
type measureResult struct {
	Name    string     `json:"name"`
	Title   string     `json:"title"`
	Threads int        `json:"threads"`
	Flows   int        `json:"flows"`
	Metrics []metric   `json:"metrics"`
	Relays  []relayRow `json:"relays"`
}

type relayRow struct {
	Name   string      `json:"name"`
	Values [][]float64 `json:"values"` // by metric, one of each round
}

func newResult(b *bench) *result {
	r := &result{Machine: machine(), Kernel: peers.KernelVersion(), CPUs: runtime.NumCPU(), Threads: b.threads, Repeat: b.repeat, TimeS: b.time.Seconds()}
	for _, m := range b.measures {
		threads := m.threads
		if threads == 0 {
			threads = b.threads
		}
		r.Measures = append(r.Measures, &measureResult{Name: m.name, Title: m.title, Threads: threads, Flows: m.load.clients, Metrics: m.metrics})
	}
	return r
}

func (r *result) addRelay(relay peers.Relay, p peers.Program) {
	r.Relays = append(r.Relays, relayName{relay.Name, p.Version, relay.Note})
	for _, m := range r.Measures {
		m.Relays = append(m.Relays, relayRow{Name: relay.Name, Values: make([][]float64, len(m.Metrics))})
	}
}

// add notes one sample of a relay.
func (r *result) add(m, relay int, kind measure, s sample) {
	r.Measures[m].Flows = s.flows // as many as the limits of this machine allow
	values := r.Measures[m].Relays[relay].Values
	for k, metric := range kind.metrics {
		values[k] = append(values[k], metric.read(s))
	}
}

// valuesOf are the values of one metric of one relay.
func (m *measureResult) valuesOf(relay, metric string) []float64 {
	for _, row := range m.Relays {
		for k, have := range m.Metrics {
			if row.Name == relay && have.Name == metric {
				return row.Values[k]
			}
		}
	}
	return nil
}

// median is the middle of the values, with the least and the most.
func median(values []float64) (mid, least, most float64) {
	if len(values) == 0 {
		return 0, 0, 0
	}
	least, most = stats.Spread(values, kit.Itself)
	return stats.Median(values, kit.Itself), least, most
}

func (m metric) format(values []float64) string {
	mid, least, most := median(values)
	f := func(v float64) string { return fmt.Sprintf(m.Format, v*m.Scale) }
	if mid == 0 {
		return "–"
	}
	if f(least) == f(most) {
		return f(mid)
	}
	return fmt.Sprintf("%s (%s–%s)", f(mid), f(least), f(most))
}

func (r *result) title(name string) string {
	for _, relay := range r.Relays {
		if relay.Name == name {
			s := strings.TrimSpace(name + " " + relay.Version)
			if relay.Note != "" {
				s += " (" + relay.Note + ")"
			}
			return s
		}
	}
	return name
}

func (r *result) conditions() string {
	threads := fmt.Sprintf("relay threads %d, ", r.Threads)
	for _, m := range r.Measures {
		if m.Threads != r.Threads {
			threads = ""
		}
	}
	return fmt.Sprintf("%s, %d CPUs, Linux %s, %sloopback; medians of %d runs of %g s (least–most).",
		r.Machine, r.CPUs, r.Kernel, threads, r.Repeat, r.TimeS)
}

func (r *result) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func (r *result) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	for _, m := range r.Measures {
		fmt.Fprintf(&b, "**%s**\n\n| relay |", m.Title)
		for _, metric := range m.Metrics {
			fmt.Fprintf(&b, " %s |", metric.Title)
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", len(m.Metrics)) + "\n")
		for _, row := range m.Relays {
			fmt.Fprintf(&b, "| %s |", r.title(row.Name))
			for k, metric := range m.Metrics {
				fmt.Fprintf(&b, " %s |", metric.format(row.Values[k]))
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	}
	if head, rows := r.changeTable(); len(rows) > 0 {
		fmt.Fprintf(&b, "**%s**\n\n| %s |\n%s|\n", changesTitle, strings.Join(head, " | "), strings.Repeat("|---", len(head)))
		for _, row := range rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
		b.WriteString("\n")
	}
	b.WriteString(r.conditions() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *result) writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range r.Measures {
		fmt.Fprintf(t, "%s\n  relay", m.Title)
		for _, metric := range m.Metrics {
			fmt.Fprintf(t, "\t%s", metric.Title)
		}
		fmt.Fprintln(t)
		for _, row := range m.Relays {
			fmt.Fprintf(t, "  %s", row.Name)
			for k, metric := range m.Metrics {
				fmt.Fprintf(t, "\t%s", metric.format(row.Values[k]))
			}
			fmt.Fprintln(t)
		}
		fmt.Fprintln(t)
	}
	if head, rows := r.changeTable(); len(rows) > 0 {
		fmt.Fprintf(t, "%s\n  %s\n", changesTitle, strings.Join(head, "\t"))
		for _, row := range rows {
			fmt.Fprintf(t, "  %s\n", strings.Join(row, "\t"))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, r.conditions())
	return t.Flush()
}

func machine() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
