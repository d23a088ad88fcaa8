// Package screen shows the connections of a table of [top], live on a terminal or as
// text.
package screen

import (
	"fmt"
	"math"
	"slices"
	"time"

	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/watch/top"
	"longhaul/internal/words/display"
)

// The lines of the list's screen besides rows: title, note, header, keys.
const frameLines = 4

const (
	listKeys    = "s sort  / filter  space pause  enter details  ↑↓ move  q quit"
	editKeys    = "enter keep  esc as it was     10.0.0.0/8  :22  4711  scp  receiver-window"
	detailsKeys = "esc back  space pause  q quit"
)

// Source is the source of a view: a [top.Watcher].
type Source interface {
	Refresh() error
	Table() *top.Table
	Unseen() string // a sentence on missing figures, or empty
}

// Live is the live view. One goroutine reads keys, refreshes and draws, so that no data
// changes while it is shown. 10 000 connections take some hundredths of a second.
type Live struct {
	source   Source
	interval time.Duration
	order    top.Order
	filter   top.Filter

	width, height int
	rows          []*top.Connection
	offset        int             // of the first row on the screen
	cursor        int             // among rows
	selected      *top.Connection // the cursor stays with it; nil: with the first row
	details       bool            // of the one at the cursor
	subject       *top.Connection // of details
	paused        bool

	editing bool // the filter
	typed   string
	before  top.Filter // of the editing
	wrong   string     // with what is typed
}

// action is what a key asks of the terminal's loop.
type action int

const (
	stay action = iota
	quit
	suspend
	restart // the refreshes, at once
)

// New returns a view that refreshes its source each interval.
func New(source Source, interval time.Duration, order top.Order, filter top.Filter) *Live {
	return &Live{source: source, interval: interval, order: order, filter: filter}
}

// refresh returns when the next one is due.
func (v *Live) refresh() (after time.Duration, err error) {
	started := time.Now()
	if err := v.source.Refresh(); err != nil {
		return 0, err
	}
	v.sort()
	// Keys get at least half of the time, for any number of connections.
	return max(v.interval-time.Since(started), v.interval/2), nil
}

// sort rebuilds the rows, and moves the cursor to its connection. A filtered connection
// stays selected: the next character of the filter may select it again.
func (v *Live) sort() {
	v.rows = v.source.Table().Select(v.filter, v.order)
	if v.selected == nil || v.selected.Ended() {
		v.move(v.cursor)
		return
	}
	if i := slices.Index(v.rows, v.selected); i >= 0 {
		v.cursor = i
	}
	v.cursor = max(0, min(v.cursor, len(v.rows)-1))
}

// move moves the cursor to a row, or to the nearest one.
func (v *Live) move(to int) {
	v.cursor = max(0, min(to, len(v.rows)-1))
	v.selected = nil
	if v.cursor > 0 {
		v.selected = v.rows[v.cursor]
	}
}

func (v *Live) press(k key) action {
	if k.name == "ctrl+c" {
		return quit
	}
	if v.editing {
		v.pressEditing(k)
		return stay
	}
	page := max(1, v.height-frameLines)
	pressed := k.name
	if pressed == "" {
		pressed = k.text
	}
	switch pressed {
	case "q":
		return quit
	case "ctrl+z":
		return suspend
	case "space":
		return v.pause()
	case "esc", "backspace":
		switch {
		case v.details:
			v.details, v.subject = false, nil
		default:
			v.filter = top.Filter{}
			v.sort()
		}
	}
	if v.details {
		return stay
	}
	switch pressed {
	case "enter":
		if len(v.rows) > 0 {
			v.details, v.subject = true, v.rows[v.cursor]
		}
	case "/":
		v.editing, v.typed, v.before, v.wrong = true, v.filter.String(), v.filter, ""
	case "s":
		v.order = v.order.Next()
		v.sort()
	case "up", "k":
		v.move(v.cursor - 1)
	case "down", "j":
		v.move(v.cursor + 1)
	case "pgup":
		v.move(v.cursor - page)
	case "pgdown":
		v.move(v.cursor + page)
	case "home", "g":
		v.move(0)
	case "end", "G":
		v.move(len(v.rows) - 1)
	}
	return stay
}

// pause stops or restarts the refreshes. The first one after a pause begins an
// interval: otherwise its figures would be means over the pause.
func (v *Live) pause() action {
	v.paused = !v.paused
	if v.paused {
		return stay
	}
	v.source.Table().Restart()
	return restart
}

func (v *Live) pressEditing(k key) {
	switch k.name {
	case "enter":
		v.editing = v.wrong != ""
	case "esc":
		v.editing, v.filter = false, v.before
		v.sort()
	case "backspace":
		if runes := []rune(v.typed); len(runes) > 0 {
			v.edit(string(runes[:len(runes)-1]))
		}
	case "ctrl+u":
		v.edit("")
	default:
		v.edit(v.typed + k.text)
	}
}

// edit changes the filter, and applies it if it is valid.
func (v *Live) edit(typed string) {
	v.typed, v.wrong = typed, ""
	filter, err := top.ParseFilter(typed)
	if err != nil {
		v.wrong = err.Error()
		return
	}
	v.filter = filter
	v.sort()
}

const (
	styleBold    = "\x1b[1m"
	styleReverse = "\x1b[7m"
	styleFaint   = "\x1b[2m"
	styleOff     = "\x1b[m"
)

// screen returns the lines of the screen.
func (v *Live) screen() []string {
	lines, keys := v.list(), listKeys
	switch {
	case v.details:
		lines, keys = v.detailed(), detailsKeys
	case v.editing:
		keys = editKeys
	}
	lines = slices.Grow(lines, v.height)
	for len(lines) < v.height-1 {
		lines = append(lines, "")
	}
	return append(lines[:max(0, v.height-1)], styled(styleFaint, display.Cut(keys, v.width)))
}

// title returns the line with the shown connections and their order.
func (v *Live) title() string {
	sent, received := v.source.Table().Totals()
	all := len(v.source.Table().Connections())
	shown := ""
	if len(v.rows) != all {
		shown = fmt.Sprintf("%d of ", len(v.rows))
	}
	title := fmt.Sprintf("%s%s  sent %s  received %s  by %s", shown, display.Plural(all, "connection"), display.CompactRate(sent), display.CompactRate(received), v.order)
	if v.paused {
		title += "  PAUSED"
	}
	return title
}

// note returns the line below the title: the filter, or the missing figures.
func (v *Live) note() string {
	switch {
	case v.editing && v.wrong != "":
		return "filter: " + v.typed + "█  " + v.wrong
	case v.editing:
		return "filter: " + v.typed + "█"
	case v.filter.String() != "":
		return "filter: " + v.filter.String() + "  (esc: none)"
	}
	return v.source.Unseen()
}

func (v *Live) list() []string {
	visible := max(0, v.height-frameLines)
	v.offset = max(min(v.offset, v.cursor), v.cursor-visible+1, 0)
	v.offset = min(v.offset, max(0, len(v.rows)-visible))
	rows := v.rows[min(v.offset, len(v.rows)):min(v.offset+visible, len(v.rows))]
	layout := newLayout(rows, v.width)
	lines := []string{
		styled(styleBold, display.Cut(v.title(), v.width)),
		display.Cut(v.note(), v.width),
		styled(styleBold, display.Cut(layout.header(), v.width)),
	}
	for i, c := range rows {
		line := display.Cut(layout.row(c), v.width)
		if v.offset+i == v.cursor {
			line = styled(styleReverse, fmt.Sprintf("%-*s", v.width, line))
		}
		lines = append(lines, line)
	}
	return lines
}

// detailed returns the screen of one connection.
func (v *Live) detailed() []string {
	c := v.subject
	i := &c.Info
	state := i.State.String()
	if c.Ended() {
		state = "ended; as it was last seen"
	}
	if v.paused {
		state += "  PAUSED"
	}
	has := func(f tcpinfo.Field, format string, args ...any) string {
		if !i.Has(f) {
			return "-"
		}
		return fmt.Sprintf(format, args...)
	}
	spark := func(name, now string, course []float64) string {
		return fmt.Sprintf("%-9s %9s %s", name, now, display.Sparkline(course, min(top.HistoryLen, max(0, v.width-20))))
	}
	title := []string{fmt.Sprintf("%v -> %v", c.Local, c.Remote)}
	if len(title[0]) > v.width {
		title = []string{c.Local.String(), "-> " + c.Remote.String()}
	}
	text := append(title,
		fmt.Sprintf("%s  %s  uid %d  %s", state, processText(c, true), c.UID, c.CongestionControl),
		"",
		spark("sent", detailRate(c.SentBps), c.History.SentBps()),
		spark("received", detailRate(c.ReceivedBps), c.History.ReceivedBps()),
		spark("RTT", display.SpanSeconds(c.RTT()), c.History.RTT()),
		spark("retransm.", display.Share(c.Retransmitted), c.History.Retransmitted()),
		"",
		"cause     "+causeText(c),
		fmt.Sprintf("limited   by the peer's window %s, by the send buffer %s of the time", display.Share(c.WindowLimited), display.Share(c.BufferLimited)),
		fmt.Sprintf("busy      %s of the time with data to send", display.Share(c.Busy)),
		fmt.Sprintf("RTT       least %s, deviation %s, timeout %s",
			has(tcpinfo.FieldMinRTT, "%s", display.SpanSeconds(i.MinRTT.Seconds())), has(tcpinfo.FieldRTTVar, "%s", display.SpanSeconds(i.RTTVar.Seconds())), has(tcpinfo.FieldRTO, "%s", display.SpanSeconds(i.RTO.Seconds()))),
		fmt.Sprintf("windows   congestion %sB (%d segments), peer's %s, announced %s", display.Quantity(int64(i.SndCwnd)*int64(i.SndMSS)), i.SndCwnd,
			has(tcpinfo.FieldSndWnd, "%sB", display.Quantity(int64(i.SndWnd))), has(tcpinfo.FieldRcvWnd, "%sB", display.Quantity(int64(i.RcvWnd)))),
		fmt.Sprintf("in flight %d segments, %d acknowledged selectively, %d taken for lost", i.Unacked, i.Sacked, i.Lost),
		fmt.Sprintf("segments  MSS %d, the peer's %d, path MTU %d", i.SndMSS, i.RcvMSS, i.PMTU),
		fmt.Sprintf("pacing    %s, delivery %s", has(tcpinfo.FieldPacingRateBps, "%s", limitText(i.PacingRateBps)), has(tcpinfo.FieldDeliveryRateBps, "%s", limitText(i.DeliveryRateBps))),
		fmt.Sprintf("queues    %sB written and not acknowledged, %sB not read", display.Quantity(int64(c.SendQueue)), display.Quantity(int64(c.RecvQueue))),
		memoryText(c.Memory),
		fmt.Sprintf("totals    %s acknowledged, %s received, %d segments retransmitted",
			has(tcpinfo.FieldBytesAcked, "%sB", display.Quantity(int64(i.BytesAcked))), has(tcpinfo.FieldBytesReceived, "%sB", display.Quantity(int64(i.BytesReceived))), i.TotalRetrans),
	)
	for n := range text {
		text[n] = display.Cut(text[n], v.width)
		if n < len(title) {
			text[n] = styled(styleBold, text[n])
		}
	}
	return text
}

func memoryText(m tcpinfo.Memory) string {
	if !m.Known {
		return "memory    -"
	}
	return fmt.Sprintf("memory    send buffer %sB of %sB, receive buffer %sB of %sB", display.Quantity(int64(m.SndQueued)), display.Quantity(int64(m.SndBuf)),
		display.Quantity(int64(m.RcvAlloc)), display.Quantity(int64(m.RcvBuf)))
}

func detailRate(bps float64) string {
	if math.IsNaN(bps) {
		return "-"
	}
	return display.CompactRate(bps)
}

func limitText(bps int64) string {
	if bps == tcpinfo.Unlimited {
		return "unlimited"
	}
	return display.CompactRate(float64(bps))
}

func styled(style, s string) string { return style + s + styleOff }
