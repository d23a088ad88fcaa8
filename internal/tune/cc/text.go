package cc

import (
	"fmt"
	"io"
	"strings"
	"time"

	"longhaul/internal/words/display"
)

// WriteList writes algorithms as a table that fits a terminal of 80 columns. Long
// remarks get their own line.
func WriteList(w io.Writer, algorithms []Algorithm, now time.Time) {
	const (
		row   = "%-15s  %-8s  %-11s  %11s  %s"
		left  = 80 - (15 + 2 + 8 + 2 + 11 + 2 + 11 + 2)
		below = "  "
	)
	line := func(values ...any) {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(row, values...), " "))
	}
	line("NAME", "FROM", "STATE", "CONNECTIONS", "")
	for _, a := range algorithms {
		connections := "-"
		if a.Sockets != nil {
			connections = fmt.Sprint(*a.Sockets)
		}
		remarks, more := strings.Join(a.remarks(now), ", "), ""
		if len(remarks) > left {
			remarks, more = "", below+remarks+"\n"
		}
		line(a.Name, a.Origin, a.State, connections, remarks)
		fmt.Fprint(w, more)
	}
}

func (a Algorithm) remarks(now time.Time) (remarks []string) {
	if a.Default {
		remarks = append(remarks, "default")
	}
	if a.Restricted {
		remarks = append(remarks, "restricted to CAP_NET_ADMIN")
	}
	if a.LoadedAt != nil {
		owners := ""
		if len(a.Owners) > 0 {
			owners = " for " + strings.Join(a.Owners, ", ")
		}
		remarks = append(remarks, "loaded "+display.Age(now.Sub(*a.LoadedAt).Seconds())+" ago"+owners)
	}
	if a.Algorithm != "" {
		remarks = append(remarks, "is "+a.Algorithm)
	}
	if a.Outdated {
		remarks = append(remarks, "from another build: load it again to replace it")
	}
	if a.Why != "" {
		return append(remarks, a.Why)
	}
	if a.Summary != "" && a.LoadedAt == nil {
		remarks = append(remarks, a.Summary)
	}
	return append(remarks, a.Notes...)
}
