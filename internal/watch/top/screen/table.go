package screen

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net/netip"
	"unicode/utf8"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/watch/top"
	"longhaul/internal/words/display"
	"longhaul/internal/words/printable"
)

// The minimum widths of the flexible columns.
const (
	minLocal   = 6 // a colon and a port
	minRemote  = 21
	minProcess = 7
)

// fixedColumns are the other columns: their format, and their width with separators
// and the longest cause.
const (
	fixedColumns      = " %5s %5s %5s %4s %4s %s"
	fixedColumnsWidth = 44
)

// layout has the widths of a table's columns.
type layout struct {
	local, remote, process int
	fullLocal              bool // the local address, not only the port
	fullProcess            bool // the PID, not only the name
}

// newLayout fits the rows into a width, at least 80 columns; 0 means no bound.
func newLayout(rows []*top.Connection, width int) layout {
	l := layout{local: minLocal, remote: minRemote, process: minProcess}
	needLocal, needRemote, needProcess := l.local, l.remote, l.process
	for _, c := range rows {
		needLocal = max(needLocal, len(c.Local.String()))
		needRemote = max(needRemote, len(c.Remote.String()))
		needProcess = max(needProcess, utf8.RuneCountInString(processText(c, true)))
	}
	if width == 0 {
		return layout{needLocal, needRemote, needProcess, true, true}
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

func (l layout) header() string {
	return l.line("LOCAL", "REMOTE", "PROCESS") + fmt.Sprintf(fixedColumns, "SENT", "RECV", "RTT", "RETR", "LIM", "CAUSE")
}

func (l layout) row(c *top.Connection) string {
	return l.line(l.localText(c.Local), c.Remote.String(), processText(c, l.fullProcess)) +
		fmt.Sprintf(fixedColumns, rateText(c.SentBps), rateText(c.ReceivedBps), display.SpanSeconds(c.RTT()),
			display.Share(c.Retransmitted), display.Share(c.Limited()), causeText(c))
}

func (l layout) line(local, remote, process string) string {
	return fmt.Sprintf("%-*s %-*s %-*s", l.local, display.Shorten(local, l.local), l.remote, display.Shorten(remote, l.remote), l.process, display.Shorten(process, l.process))
}

func (l layout) localText(a netip.AddrPort) string {
	if l.fullLocal {
		return a.String()
	}
	return fmt.Sprintf(":%d", a.Port())
}

// processText returns the name of the process, and its PID. A program can put control
// characters into its name.
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

// causeText returns the cause, or another remark.
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

// rateText formats bits per second in at most five characters.
func rateText(bps float64) string {
	if math.IsNaN(bps) {
		return "-"
	}
	return display.Quantity(int64(bps))
}

// WriteTable writes connections as a table, in the width of the terminal, if any.
func WriteTable(w io.Writer, connections []*top.Connection) error {
	width, _ := display.TerminalWidth(w)
	l := newLayout(connections, width)
	buffered := bufio.NewWriter(w)
	fmt.Fprintln(buffered, l.header())
	for _, c := range connections {
		fmt.Fprintln(buffered, l.row(c))
	}
	return buffered.Flush()
}
