package top

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/process"
	"longhaul/internal/sys/tcpinfo"
)

// list is the kernel's list, as a test has it.
type list []*tcpinfo.Connection

func (l list) each(visit func(*tcpinfo.Connection)) error {
	for _, c := range l {
		visit(c)
	}
	return nil
}

// seen is a connection of which a kernel told everything that top looks at.
func seen(cookie uint64, local, remote string) *tcpinfo.Connection {
	c := &tcpinfo.Connection{Cookie: cookie, Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort(remote)}
	c.Info.State = tcpinfo.Established
	c.Info.RTT = 20 * time.Millisecond
	c.Info.Know(tcpinfo.FieldState, tcpinfo.FieldRTT, tcpinfo.FieldBytesAcked, tcpinfo.FieldBytesReceived, tcpinfo.FieldBytesSent,
		tcpinfo.FieldBytesRetrans, tcpinfo.FieldBusyTime, tcpinfo.FieldRwndLimited, tcpinfo.FieldSndbufLimited,
		tcpinfo.FieldTotalRetrans, tcpinfo.FieldDataSegsOut)
	return c
}

// tableOf refreshes a table a second after another for each list.
func tableOf(t *testing.T, glance Glance, lists ...list) *Table {
	t.Helper()
	table := NewTable(glance)
	for i, l := range lists {
		if err := table.Refresh(time.Duration(i)*time.Second, l.each); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

func noCause(before, after doctor.Sample) doctor.Cause { return "" }

func isNaN(figures ...float64) bool {
	return !slices.ContainsFunc(figures, func(f float64) bool { return !math.IsNaN(f) })
}

func TestFigures(t *testing.T) {
	before := seen(1, "10.0.0.1:40000", "192.0.2.1:22")
	after := *before
	after.Info.BytesAcked += 1_000_000
	after.Info.BytesReceived += 250
	after.Info.BytesSent += 1_250_000
	after.Info.BytesRetrans += 250_000
	after.Info.RwndLimited += 300 * time.Millisecond
	after.Info.SndbufLimited += 100 * time.Millisecond
	after.Info.BusyTime += 900 * time.Millisecond

	table := tableOf(t, noCause, list{before})
	c := table.Connections()[0]
	if !isNaN(c.SentBps, c.ReceivedBps, c.Retransmitted, c.WindowLimited, c.BufferLimited, c.Limited(), c.Busy) {
		t.Errorf("figures of one look: %+v", c)
	}
	if c.RTT() != 0.02 {
		t.Errorf("RTT %v", c.RTT())
	}
	table = tableOf(t, noCause, list{before}, list{&after})
	c = table.Connections()[0]
	if c.SentBps != 8e6 || c.ReceivedBps != 2000 || c.Retransmitted != 0.2 || c.WindowLimited != 0.3 || c.BufferLimited != 0.1 || c.Limited() != 0.4 || c.Busy != 0.9 {
		t.Errorf("figures: %+v", c)
	}
	if sent, received := table.Totals(); sent != 8e6 || received != 2000 {
		t.Errorf("totals %v and %v", sent, received)
	}
	if table.Interval() != time.Second {
		t.Errorf("interval %v", table.Interval())
	}
	if got := c.History.SentBps(); !slices.Equal(got, []float64{8e6}) {
		t.Errorf("history %v", got)
	}
}

// An old kernel tells less, and nothing is made up.
func TestFiguresOfAnOldKernel(t *testing.T) {
	before := seen(1, "10.0.0.1:40000", "192.0.2.1:22")
	before.Info = tcpinfo.Info{State: tcpinfo.Established}
	before.Info.Know(tcpinfo.FieldState, tcpinfo.FieldTotalRetrans, tcpinfo.FieldDataSegsOut)
	after := *before
	after.Info.DataSegsOut, after.Info.TotalRetrans = 100, 5
	c := tableOf(t, noCause, list{before}, list{&after}).Connections()[0]
	if !isNaN(c.SentBps, c.ReceivedBps, c.Limited(), c.Busy, c.RTT()) || c.Retransmitted != 0.05 {
		t.Errorf("figures: %+v", c)
	}
}

func TestNothingSentIsNotNothingLost(t *testing.T) {
	idle := seen(1, "10.0.0.1:40000", "192.0.2.1:22")
	c := tableOf(t, noCause, list{idle}, list{idle}).Connections()[0]
	if c.SentBps != 0 || c.ReceivedBps != 0 || !isNaN(c.Retransmitted) {
		t.Errorf("figures: %+v", c)
	}
}

func TestComingAndGoing(t *testing.T) {
	a, b := seen(1, "10.0.0.1:1", "192.0.2.1:22"), seen(2, "10.0.0.1:2", "192.0.2.1:22")
	table := tableOf(t, noCause, list{a}, list{a, b, a})
	if n := len(table.Connections()); n != 2 {
		t.Fatalf("%d connections of two, one of which was listed twice", n)
	}
	first := table.byCookie[1]
	if got := table.byCookie[2]; !isNaN(got.SentBps) {
		t.Errorf("a new one has sent %v", got.SentBps)
	}
	if err := table.Refresh(2*time.Second, list{b}.each); err != nil {
		t.Fatal(err)
	}
	if !first.Ended() || len(table.byCookie) != 1 || table.Connections()[0].Ended() {
		t.Errorf("after the end of one: %d are kept", len(table.byCookie))
	}

	// The addresses again, but another connection.
	again := *b
	again.Cookie, again.Info.BytesAcked = 3, 5000
	if err := table.Refresh(3*time.Second, list{&again}.each); err != nil {
		t.Fatal(err)
	}
	if c := table.Connections()[0]; !isNaN(c.SentBps) {
		t.Errorf("it begins with %v", c.SentBps)
	}
	failed := errors.New("failed")
	if err := table.Refresh(4*time.Second, func(func(*tcpinfo.Connection)) error { return failed }); err != failed {
		t.Errorf("error %v", err)
	}
}

// After a pause the first figures are not means over it.
func TestRestart(t *testing.T) {
	c := seen(1, "10.0.0.1:1", "192.0.2.1:22")
	table := tableOf(t, noCause, list{c}, list{c})
	table.Restart()
	more := *c
	more.Info.BytesAcked = 1e9
	for i, want := range []float64{math.NaN(), 0} {
		if err := table.Refresh(time.Hour+time.Duration(i)*time.Second, list{&more}.each); err != nil {
			t.Fatal(err)
		}
		if got := table.Connections()[0].SentBps; got != want && !isNaN(got, want) {
			t.Errorf("refresh %d after the pause: %v, want %v", i+1, got, want)
		}
	}
}

// The cause is of at least two seconds or twenty round trips, once there are so
// many, and it is asked for once a refresh.
func TestCause(t *testing.T) {
	for _, tt := range []struct {
		rtt         time.Duration
		refreshes   int
		least, most time.Duration
	}{
		{20 * time.Millisecond, 2, time.Second, time.Second},
		{20 * time.Millisecond, 30, 2 * time.Second, 4 * time.Second},
		{300 * time.Millisecond, 30, 6 * time.Second, 12 * time.Second},
	} {
		asked := 0
		var span time.Duration
		glance := func(before, after doctor.Sample) doctor.Cause {
			asked++
			span = after.At - before.At
			if after.SendBuffer != 100 || after.SendQueued != 70 || after.CPU >= 0 {
				t.Errorf("sample %+v", after)
			}
			return doctor.ReceiverWindow
		}
		c := seen(1, "10.0.0.1:1", "192.0.2.1:22")
		c.Info.RTT = tt.rtt
		c.Memory = tcpinfo.Memory{Known: true, SndBuf: 100, SndQueued: 70}
		table := tableOf(t, glance, slices.Repeat([]list{{c}}, tt.refreshes)...)
		for range 3 {
			if got := table.Connections()[0].Cause(); got != doctor.ReceiverWindow {
				t.Errorf("cause %q", got)
			}
		}
		if asked != 1 || span < tt.least || span > tt.most {
			t.Errorf("RTT %v, %d refreshes: asked %d times, over %v", tt.rtt, tt.refreshes, asked, span)
		}
	}
	table := tableOf(t, func(doctor.Sample, doctor.Sample) doctor.Cause { return doctor.CPU }, list{seen(1, "10.0.0.1:1", "192.0.2.1:22")})
	if got := table.Connections()[0].Cause(); got != "" {
		t.Errorf("cause %q from one look", got)
	}
}

func TestMemoryNotKnown(t *testing.T) {
	glance := func(before, after doctor.Sample) doctor.Cause {
		if after.SendBuffer >= 0 || after.SendQueued >= 0 {
			t.Errorf("sample %+v", after)
		}
		return ""
	}
	c := seen(1, "10.0.0.1:1", "192.0.2.1:22")
	tableOf(t, glance, list{c}, list{c}).Connections()[0].Cause()
}

func TestOrders(t *testing.T) {
	var before, after list
	for i, figures := range []struct{ acked, received, again, window uint64 }{
		{acked: 100, again: 90, window: 1},
		{received: 5000},
		{acked: 1000, again: 10, window: 500},
		{},
	} {
		c := seen(uint64(i+1), "10.0.0.1:1", "192.0.2.1:22")
		c.Info.RTT = time.Duration(10-i) * time.Millisecond
		before = append(before, c)
		next := *c
		next.Info.BytesAcked, next.Info.BytesReceived = figures.acked, figures.received
		next.Info.BytesSent, next.Info.BytesRetrans = figures.acked+figures.again, figures.again
		next.Info.RwndLimited = time.Duration(figures.window) * time.Millisecond
		after = append(after, &next)
	}
	table := tableOf(t, noCause, before, after)
	for order, want := range map[Order][]uint64{
		ByGoodput:         {2, 3, 1, 4},
		ByRetransmissions: {1, 3, 2, 4}, // those that sent nothing come last
		ByLimited:         {3, 1, 2, 4},
		ByRTT:             {1, 2, 3, 4},
	} {
		var got []uint64
		for _, c := range table.Select(Filter{}, order) {
			got = append(got, c.Cookie)
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %s: %v, want %v", order, got, want)
		}
	}
	for _, o := range Orders() {
		if parsed, err := ParseOrder(string(o)); err != nil || parsed != o {
			t.Errorf("%s: %v, %v", o, parsed, err)
		}
	}
	if _, err := ParseOrder("name"); err == nil {
		t.Error("sorts by name")
	}
	o, met := ByGoodput, map[Order]bool{}
	for range Orders() {
		met[o] = true
		o = o.Next()
	}
	if len(met) != len(Orders()) || o != ByGoodput {
		t.Errorf("in turn: %v, then %s", met, o)
	}
}

func TestFilter(t *testing.T) {
	c := seen(1, "10.1.2.3:40022", "[2001:db8::7]:443")
	glance := func(doctor.Sample, doctor.Sample) doctor.Cause { return doctor.ReceiverWindow }
	table := tableOf(t, glance, list{c}, list{c})
	connection := table.Connections()[0]
	connection.Process = process.Process{PID: 4711, Command: "Rsync"}
	for text, want := range map[string]bool{
		"":                           true,
		":443":                       true,
		":44":                        false,
		"443":                        true,
		"4711":                       true,
		"471":                        false,
		"40022":                      true,
		"10.1.2.3":                   true,
		"10.1.2":                     true,
		"10.1.2.4":                   false,
		"10.0.0.0/8":                 true,
		"10.9.9.9/8":                 true,
		"192.168.0.0/16":             false,
		"2001:db8::/32":              true,
		"2001:DB8::7":                true,
		"[2001:db8::7]":              true,
		"[2001:db8::7]:443":          true,
		"rsync":                      true,
		"SYN":                        true,
		"ssh":                        false,
		"receiver":                   true,
		"random-loss":                false,
		"rsync :443 receiver-window": true,
		"rsync :22":                  false,
		"a/b":                        false,
		"  rsync  ":                  true,
	} {
		f, err := ParseFilter(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := f.Matches(connection); got != want || len(table.Select(f, ByGoodput)) == 1 != want {
			t.Errorf("%q: %v", text, got)
		}
		if f.String() != text {
			t.Errorf("%q reads %q", text, f.String())
		}
	}
	for _, bad := range []string{"10.0.0.0/33", "2001:db8::/x", ":99999", "99999999999999999999"} {
		if _, err := ParseFilter(bad); err == nil {
			t.Errorf("%q is a filter", bad)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(":22 10.0.0.0/8 scp")
	f.Add("[fe80::1%lo]")
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := ParseFilter(text)
		if err != nil {
			return
		}
		c := &Connection{Connection: *seen(1, "10.1.2.3:40022", "[2001:db8::7]:443"), table: NewTable(noCause)}
		filter.Matches(c)
	})
}

func TestHistory(t *testing.T) {
	var h History
	if got := h.RTT(); len(got) != 0 {
		t.Errorf("at first: %v", got)
	}
	for i := range HistoryLen + 3 {
		h.add(point{sent: float32(i), received: float32(2 * i), rtt: float32(3 * i), retransmitted: float32(4 * i)})
	}
	for i, got := range [][]float64{h.SentBps(), h.ReceivedBps(), h.RTT(), h.Retransmitted()} {
		by := float64(i + 1)
		if len(got) != HistoryLen || got[0] != 3*by || got[HistoryLen-1] != by*(HistoryLen+2) {
			t.Errorf("course %d: %v", i, got)
		}
	}
}

func BenchmarkRefresh(b *testing.B) {
	var l list
	for i := range 10_000 {
		l = append(l, seen(uint64(i), "10.0.0.1:40000", "192.0.2.1:22"))
	}
	table := NewTable(doctor.Glance)
	at := time.Duration(0)
	for b.Loop() {
		at += time.Second
		if err := table.Refresh(at, l.each); err != nil {
			b.Fatal(err)
		}
		table.Select(Filter{}, ByGoodput)
	}
}
