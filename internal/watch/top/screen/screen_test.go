package screen

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/process"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/watch/top"
)

// source is a table that nothing refreshes.
type source struct{ table *top.Table }

func (s source) Refresh() error    { return nil }
func (s source) Table() *top.Table { return s.table }
func (s source) Unseen() string    { return "" }

// tableOf is a table of connections with the longest texts that there are.
func tableOf(t *testing.T, n int) *top.Table {
	t.Helper()
	table := top.NewTable(func(doctor.Sample, doctor.Sample) doctor.Cause { return doctor.ReceiverWindow })
	for second := range 3 {
		err := table.Refresh(time.Duration(second)*time.Second, func(visit func(*tcpinfo.Connection)) error {
			for i := range n {
				c := tcpinfo.Connection{
					Cookie: uint64(i + 1), Inode: uint32(i + 1), CongestionControl: "cubic",
					Local:  netip.MustParseAddrPort(fmt.Sprintf("192.168.100.100:%d", 10000+i)),
					Remote: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:50000"),
				}
				c.Info.State, c.Info.RTT = tcpinfo.Established, 63*time.Millisecond
				c.Info.BytesAcked = uint64(second * 1_000_000 * (n - i))
				c.Info.Know(tcpinfo.FieldState, tcpinfo.FieldRTT, tcpinfo.FieldBytesAcked, tcpinfo.FieldBytesReceived)
				visit(&c)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range table.Connections() {
		c.Process = process.Process{PID: 4194304, Command: "a\x1b[2Jlong-name-"}
	}
	return table
}

func TestTableFits(t *testing.T) {
	rows := tableOf(t, 3).Select(top.Filter{}, top.ByGoodput)
	for _, width := range []int{0, 80, 100, 160, 200} {
		l := newLayout(rows, width)
		for _, line := range []string{l.header(), l.row(rows[0])} {
			if n := utf8.RuneCountInString(line); width > 0 && n > width {
				t.Errorf("%d characters in %d: %s", n, width, line)
			}
			if strings.ContainsRune(line, '\x1b') {
				t.Errorf("the name of a process reaches the terminal: %q", line)
			}
		}
	}
	l := newLayout(rows, 80)
	const want = ":10000 [2001:db8:…666]:50000 a?[…me-   24M     0  63ms    -    - receiver-window"
	if got := l.row(rows[0]); got != want {
		t.Errorf("80 columns:\n%s\nwant\n%s", got, want)
	}
	for _, width := range []int{0, 200} {
		got := newLayout(rows, width).row(rows[0])
		for _, part := range []string{"192.168.100.100:10000 ", "[2001:db8:1111:2222:3333:4444:5555:6666]:50000 ", "/4194304 "} {
			if !strings.Contains(got, part) {
				t.Errorf("%d columns: %s\nlacks %s", width, got, part)
			}
		}
	}
}

var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[a-zA-Z]`)

// screenOf is the view's screen as text.
func screenOf(v *Live) []string {
	return strings.Split(escapes.ReplaceAllString(strings.Join(v.screen(), "\n"), ""), "\n")
}

// press presses keys, each given by its name or as text.
func press(v *Live, keys ...string) {
	for _, name := range keys {
		sent, ok := map[string]string{"enter": "\r", "esc": "\x1b", "space": " ", "backspace": "\x7f", "up": "\x1b[A", "down": "\x1bOB",
			"pgdown": "\x1b[6~", "pgup": "\x1b[5~", "home": "\x1b[H", "end": "\x1b[4~"}[name]
		if !ok {
			sent = name
		}
		var r keyReader
		for _, k := range append(r.read([]byte(sent)), r.rest()...) {
			v.press(k)
		}
	}
}

func liveOf(t *testing.T, n int) *Live {
	t.Helper()
	v := New(source{tableOf(t, n)}, time.Second, top.ByGoodput, top.Filter{})
	v.width, v.height = 80, 24
	v.sort()
	return v
}

func TestScreenFits(t *testing.T) {
	for _, rows := range []int{0, 3, 100} {
		v := liveOf(t, rows)
		for _, keys := range [][]string{nil, {"/", "x", "y"}, {"enter", "esc", "end"}, {"home", "enter"}} {
			press(v, keys...)
			for _, size := range []struct{ width, height int }{{80, 24}, {200, 60}, {40, 10}, {7, 3}, {1, 1}} {
				v.width, v.height = size.width, size.height
				screen := screenOf(v)
				if len(screen) != size.height {
					t.Errorf("%d rows, keys %v: %d lines in %+v", rows, keys, len(screen), size)
				}
				for _, line := range screen {
					if n := utf8.RuneCountInString(line); n > size.width {
						t.Errorf("%d rows, keys %v: %d characters in %+v: %s", rows, keys, n, size, line)
					}
				}
			}
			v.width, v.height = 80, 24
			press(v, "esc", "esc")
		}
	}
}

func TestCursor(t *testing.T) {
	v := liveOf(t, 100)
	shows := func(port int) bool {
		t.Helper()
		for _, line := range screenOf(v) {
			if strings.HasPrefix(line, fmt.Sprintf(":%d ", port)) {
				return true
			}
		}
		return false
	}
	at := func(port uint16) {
		t.Helper()
		if got := v.rows[v.cursor].Local.Port(); got != port || !shows(int(port)) {
			t.Errorf("the cursor is at %d, want %d\n%s", got, port, strings.Join(screenOf(v), "\n"))
		}
	}
	at(10000)
	press(v, "up")
	at(10000)
	press(v, "down", "j", "down", "k")
	at(10002)
	press(v, "pgdown")
	at(10022)
	press(v, "end")
	at(10099)
	press(v, "down", "pgup")
	at(10079)
	// It stays with its connection in another order, and among fewer.
	press(v, "s")
	at(10079)
	press(v, "/", "1", "0", "0", "7", "9", "enter")
	at(10079)
	if len(v.rows) != 1 {
		t.Errorf("%d rows", len(v.rows))
	}
	press(v, "esc")
	if len(v.rows) != 100 {
		t.Errorf("%d rows without a filter", len(v.rows))
	}
	at(10079)
	press(v, "home")
	at(10000)
}

func TestFilterIsEdited(t *testing.T) {
	v := liveOf(t, 10)
	press(v, "/", ":", "1", "0", "0", "0", "3")
	if got := screenOf(v)[1]; got != "filter: :10003█" || len(v.rows) != 1 {
		t.Errorf("%s, %d rows", got, len(v.rows))
	}
	press(v, "9") // a port beyond the last
	if got := screenOf(v)[1]; !strings.Contains(got, `invalid port ":100039"`) {
		t.Errorf("a filter of an impossible port shows %q", got)
	}
	press(v, "enter") // not what cannot be read
	if !v.editing {
		t.Error("a filter that cannot be read was taken")
	}
	press(v, "backspace", "enter")
	if v.editing || v.filter.String() != ":10003" {
		t.Errorf("filter %q", v.filter)
	}
	press(v, "/", "q", "esc") // q is a letter here
	if v.filter.String() != ":10003" || len(v.rows) != 1 {
		t.Errorf("filter %q after it was left as it was, %d rows", v.filter, len(v.rows))
	}
	press(v, "/", pasteBegins+" 10004\n"+pasteEnds)
	if v.typed != ":1000310004" {
		t.Errorf("pasted: %q", v.typed)
	}
}

// What ended while it is looked at says so, and the list goes on.
func TestDetailsOfWhatHasEnded(t *testing.T) {
	v := liveOf(t, 2)
	press(v, "down", "enter")
	has := func(want string) {
		t.Helper()
		if got := strings.Join(screenOf(v), "\n"); !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	has("192.168.100.100:10001 -> [2001:db8:1111:2222:3333:4444:5555:6666]:50000\nestablished  a?[2Jlong-name-/4194304  uid 0  cubic")
	has("cause     receiver-window")
	has("8.0Mb/s ██")
	if err := v.source.Table().Refresh(4*time.Second, func(func(*tcpinfo.Connection)) error { return nil }); err != nil {
		t.Fatal(err)
	}
	v.sort()
	has("ended; as it was last seen")
	press(v, "esc", "enter") // there is nothing to look into
	has("0 connections")
}
