package loglimit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// limited is a limiter with a clock that a test moves, and what it has written.
type limited struct {
	*Limiter
	now time.Time
	out bytes.Buffer
}

func newLimited(level slog.Level) *limited {
	l := &limited{now: time.Unix(1000, 0)}
	h := slog.NewTextHandler(&l.out, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	l.Limiter = NewWithClock(slog.New(h), func() time.Time { return l.now })
	return l
}

func (l *limited) lines() string {
	defer l.out.Reset()
	return l.out.String()
}

func (l *limited) tell(what, peer string) {
	l.Log(slog.LevelInfo, what, []string{"peer"}, slog.Int("n", 1), slog.String("peer", peer))
}

func TestLines(t *testing.T) {
	l := newLimited(slog.LevelInfo)
	l.Counted("refused", "more refused")
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"the first of a kind comes at once", func() { l.tell("refused", "a") }, "level=INFO msg=refused n=1 peer=a\n"},
		{"the next are counted", func() { l.tell("refused", "a"); l.tell("refused", "a") }, ""},
		{"another kind has its own line", func() { l.tell("refused", "b") }, "level=INFO msg=refused n=1 peer=b\n"},
		{"another message too", func() { l.tell("lost", "a") }, "level=INFO msg=lost n=1 peer=a\n"},
		{"nothing is due yet", func() { l.now = l.now.Add(Pause - 1); l.Flush() }, ""},
		{"the next line has the count", func() { l.now = l.now.Add(1); l.tell("refused", "a") }, "level=INFO msg=refused n=1 peer=a suppressed=2\n"},
		{"and counts anew", func() { l.tell("refused", "a") }, ""},
		{"without a next line a flush has the count", func() { l.now = l.now.Add(Pause); l.Flush() }, "level=INFO msg=\"more refused\" peer=a suppressed=1\n"},
		{"which counts as a line", func() { l.tell("refused", "a") }, ""},
		{"and is not repeated", l.Flush, ""},
		{"the end counts the rest", l.Close, "level=INFO msg=\"more refused\" peer=a suppressed=1\n"},
		{"below the log's level nothing is counted", func() { l.Log(slog.LevelDebug, "x", nil); l.Log(slog.LevelDebug, "x", nil); l.Close() }, ""},
		{"a message without an own one for its count", func() { l.Log(slog.LevelInfo, "x", nil); l.Log(slog.LevelInfo, "x", nil); l.Close() }, "level=INFO msg=x\nlevel=INFO msg=\"more: x\" suppressed=1\n"},
	} {
		step.do()
		if diff := cmp.Diff(step.want, l.lines()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestBurst(t *testing.T) {
	l := newLimited(slog.LevelInfo)
	flap := func(times int) {
		for range times {
			l.LogBurst(3, slog.LevelInfo, "up", nil)
		}
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { flap(2) }, "level=INFO msg=up\nlevel=INFO msg=up\n"},
		{func() { l.now = l.now.Add(Pause - 1); flap(3) }, "level=INFO msg=up\n"},
		{func() { l.now = l.now.Add(1); flap(1) }, "level=INFO msg=up suppressed=2\n"},
		{func() { flap(3) }, "level=INFO msg=up\nlevel=INFO msg=up\n"},
		{func() { l.now = l.now.Add(Pause); l.Flush(); flap(3) }, "level=INFO msg=\"more: up\" suppressed=1\nlevel=INFO msg=up\nlevel=INFO msg=up\n"},
	} {
		step.do()
		if diff := cmp.Diff(step.want, l.lines()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// Whoever can make kinds of lines makes no more lines than there is room for kinds.
func TestKindsAreBounded(t *testing.T) {
	l := newLimited(slog.LevelInfo)
	burst := func() int {
		for i := range 10 * maxKinds {
			l.tell("x", fmt.Sprint(i))
		}
		return strings.Count(l.lines(), "\n")
	}
	if n := burst(); n != maxKinds {
		t.Errorf("%d lines, want %d", n, maxKinds)
	}
	if n := len(l.kinds); n != maxKinds {
		t.Errorf("%d kinds are kept, want %d", n, maxKinds)
	}
	l.now = l.now.Add(Pause)
	l.Flush()
	if got, want := l.lines(), fmt.Sprintf("level=WARN msg=\"more: lines of other kinds\" suppressed=%d\n", 9*maxKinds); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n := len(l.kinds); n != 0 {
		t.Errorf("%d silent kinds are kept", n)
	}
	if n := burst(); n != maxKinds {
		t.Errorf("%d lines after the pause, want %d", n, maxKinds)
	}
}
