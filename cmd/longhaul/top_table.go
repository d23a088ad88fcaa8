//go:build linux

package main

import (
	"fmt"
	"math"
	"net/netip"
	"unicode/utf8"

	"longhaul/internal/display"
	"longhaul/internal/printable"
	"longhaul/internal/tcpinfo"
	"longhaul/internal/top"
)

// The columns that adapt to the room there is: their least widths.
const (
	leastLocal   = 6 // a colon and a port
	leastRemote  = 21
	leastProcess = 7
)

// fixedColumns are the others: their format, and their width with separators and
// the longest cause.
const (
	fixedColumns      = " %5s %5s %5s %4s %4s %s"
	fixedColumnsWidth = 44
)

// topLayout is the widths of a table's columns.
type topLayout struct {
	local, remote, process int
	fullLocal              bool // the local address, not only the port
	fullProcess            bool // the PID, not only the name
}

// newTopLayout fits the rows into a width. With least widths that is 80; a
// width of 0 is one without a bound.
func newTopLayout(rows []*top.Connection, width int) topLayout {
	l := topLayout{local: leastLocal, remote: leastRemote, process: leastProcess}
	needLocal, needRemote, needProcess := l.local, l.remote, l.process
	for _, c := range rows {
		needLocal = max(needLocal, len(c.Local.String()))
		needRemote = max(needRemote, len(c.Remote.String()))
		needProcess = max(needProcess, utf8.RuneCountInString(processText(c, true)))
	}
	if width == 0 {
		return topLayout{needLocal, needRemote, needProcess, true, true}
	}
	room := width - (l.local + l.remote + l.process + 2 + fixedColumnsWidth)
	if room < 0 {
		l.remote = max(l.remote+room, 8)
		return l
	}
	more := min(needRemote-l.remote, room)
	l.remote += more
	room -= more
	if needLocal-l.local <= room {
		room -= needLocal - l.local
		l.local, l.fullLocal = needLocal, true
	}
	l.fullProcess = needProcess-l.process <= room
	l.process += min(needProcess-l.process, room)
	return l
}

func (l topLayout) header() string {
	return l.line("LOCAL", "REMOTE", "PROCESS") + fmt.Sprintf(fixedColumns, "SENT", "RECV", "RTT", "AGN", "LIM", "CAUSE")
}

func (l topLayout) row(c *top.Connection) string {
	return l.line(l.localText(c.Local), c.Remote.String(), processText(c, l.fullProcess)) +
		fmt.Sprintf(fixedColumns, rateText(c.SentBps), rateText(c.ReceivedBps), durationText(c.RTT()),
			shareText(c.Retransmitted), shareText(c.Limited()), causeText(c))
}

func (l topLayout) line(local, remote, process string) string {
	return fmt.Sprintf("%-*s %-*s %-*s", l.local, display.Shorten(local, l.local), l.remote, display.Shorten(remote, l.remote), l.process, display.Shorten(process, l.process))
}

func (l topLayout) localText(a netip.AddrPort) string {
	if l.fullLocal {
		return a.String()
	}
	return fmt.Sprintf(":%d", a.Port())
}

// processText is the name of the process, and its PID. A name is what a program
// made it, and might mean something to a terminal.
func processText(c *top.Connection, withPID bool) string {
	if c.Process.PID == 0 {
		return "-"
	}
	name := printable.String(c.Process.Command)
	if !withPID {
		return name
	}
	return fmt.Sprintf("%s/%d", name, c.Process.PID)
}

// causeText is the cause, or what else there is to say in its place.
func causeText(c *top.Connection) string {
	switch cause := c.Cause(); {
	case cause != "":
		return string(cause)
	case c.Info.State != tcpinfo.Established:
		return c.Info.State.String()
	case c.SentBps == 0 && c.ReceivedBps == 0:
		return "idle"
	}
	return "-"
}

// rateText writes bits per second in at most five characters.
func rateText(bps float64) string {
	if math.IsNaN(bps) {
		return "-"
	}
	return display.Quantity(int64(bps))
}

// shareText writes a part of a whole in at most four characters.
func shareText(share float64) string {
	switch percent := 100 * share; {
	case math.IsNaN(percent):
		return "-"
	case percent == 0:
		return "0%"
	case percent < 0.05:
		return "<.1%"
	case percent < 9.95:
		return fmt.Sprintf("%.1f%%", percent)
	default:
		return fmt.Sprintf("%.0f%%", percent)
	}
}

// durationText writes a time in seconds in at most five characters.
func durationText(seconds float64) string {
	switch {
	case math.IsNaN(seconds):
		return "-"
	case seconds < 0.0009995:
		return fmt.Sprintf("%.0fµs", seconds*1e6)
	case seconds < 0.00995:
		return fmt.Sprintf("%.1fms", seconds*1e3)
	case seconds < 0.9995:
		return fmt.Sprintf("%.0fms", seconds*1e3)
	case seconds < 9.95:
		return fmt.Sprintf("%.1fs", seconds)
	}
	return display.Age(seconds)
}

// sparks are the heights of a sparkline.
var sparks = []rune("▁▂▃▄▅▆▇█")

// sparkline draws figures from zero up to the greatest of them, one column
// each, the last ones where there are too many. What is not known is blank.
func sparkline(figures []float64, width int) string {
	figures = figures[max(0, len(figures)-width):]
	most := 0.0
	for _, v := range figures {
		if v > most {
			most = v
		}
	}
	line := make([]rune, len(figures))
	for i, v := range figures {
		switch {
		case math.IsNaN(v):
			line[i] = ' '
		case most == 0:
			line[i] = sparks[0]
		default:
			line[i] = sparks[int(math.Round(v/most*float64(len(sparks)-1)))]
		}
	}
	return string(line)
}
