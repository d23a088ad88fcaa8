// Package loglimit bounds the lines of a log that somebody outside can cause. It
// writes the first line of a kind at once, or the first few, and then one in each
// [Pause], with the number of those left out:
//
//	limited := loglimit.New(log)
//	limited.Log(slog.LevelWarn, "join refused", nil, slog.Any("error", err))
//	limited.Log(slog.LevelInfo, "session up", []string{"peer"}, slog.String("peer", peer))
//	limited.Flush() // at a tick of the caller
//	limited.Close() // at the end
//
// A kind is a message with the values of the attributes that the caller names. Name
// attributes that have few values, which nobody outside chooses: a tunnel, a pinned
// peer, a reason, but no address.
package loglimit

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Pause is the time between two lines of a kind.
const Pause = 10 * time.Second

// maxKinds bounds the kinds that are remembered. Lines of further kinds are only counted,
// together, so a log gets about this number of lines in a [Pause] at most.
const maxKinds = 256

// Limiter writes lines to a log. Several goroutines may use it.
type Limiter struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	more   map[string]string // see Counted
	kinds  map[string]*kind
	others kind // the lines of kinds beyond maxKinds
}

// kind is what is known of the lines of one kind.
type kind struct {
	level      slog.Level
	message    string
	attrs      []slog.Attr // that tell it from others
	last       time.Time   // when a line was written, the first one of a burst
	written    int         // lines since then, that one included
	suppressed int         // lines left out since then
}

// New returns a limiter in front of a log.
func New(log *slog.Logger) *Limiter { return NewWithClock(log, time.Now) }

// NewWithClock returns a limiter with a clock of its own, for tests.
func NewWithClock(log *slog.Logger, now func() time.Time) *Limiter {
	return &Limiter{log: log, now: now, more: map[string]string{}, kinds: map[string]*kind{},
		others: kind{level: slog.LevelWarn, message: "lines of other kinds"}}
}

// Counted sets the message of the line that counts the lines left out of a message. It
// is "more: " and the message if nobody sets it.
func (l *Limiter) Counted(message, more string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more[message] = more
}

// Log writes a line, unless one of its kind was written within [Pause]. by are the keys
// of the attributes that tell its kind from others of the same message.
func (l *Limiter) Log(level slog.Level, message string, by []string, attrs ...slog.Attr) {
	l.LogBurst(1, level, message, by, attrs...)
}

// LogBurst is Log with up to burst lines in a [Pause] in place of one, for changes that
// may honestly come a few at a time.
func (l *Limiter) LogBurst(burst int, level slog.Level, message string, by []string, attrs ...slog.Attr) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	suppressed, due := l.count(burst, level, message, by, attrs)
	if !due {
		return
	}
	if suppressed > 0 {
		attrs = append(attrs[:len(attrs):len(attrs)], slog.Int("suppressed", suppressed))
	}
	l.log.LogAttrs(context.Background(), level, message, attrs...)
}

// count counts a line. If it is due, count returns the number of those left out before.
func (l *Limiter) count(burst int, level slog.Level, message string, by []string, attrs []slog.Attr) (suppressed int, due bool) {
	var own [4]slog.Attr
	of := own[:0]
	for _, a := range attrs {
		if slices.Contains(by, a.Key) {
			of = append(of, a)
		}
	}
	key, now := keyOf(level, message, of), l.now()
	l.mu.Lock()
	k, full := l.kinds[key], len(l.kinds) >= maxKinds
	l.mu.Unlock()
	if k == nil && full {
		l.Flush()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k = l.kinds[key]
	switch {
	case k == nil && len(l.kinds) >= maxKinds:
		if l.others.suppressed == 0 && now.Sub(l.others.last) >= Pause {
			l.others.last = now
		}
		l.others.suppressed++
		return 0, false
	case k == nil:
		k = &kind{level: level, message: message, attrs: slices.Clone(of)}
		l.kinds[key] = k
	case now.Sub(k.last) < Pause && k.written < burst:
		k.written++
		return 0, true
	case now.Sub(k.last) < Pause:
		k.suppressed++
		return 0, false
	}
	suppressed = k.suppressed
	k.last, k.written, k.suppressed = now, 1, 0
	return suppressed, true
}

func keyOf(level slog.Level, message string, of []slog.Attr) string {
	var b strings.Builder
	b.WriteString(level.String())
	b.WriteByte(0)
	b.WriteString(message)
	for _, a := range of {
		b.WriteByte(0)
		b.WriteString(a.Value.String())
	}
	return b.String()
}

// Flush writes a line for each kind that has left out lines and had none written for
// [Pause], and forgets kinds that have left out none. The caller runs it now and then.
func (l *Limiter) Flush() { l.flush(l.now()) }

// Close counts all lines left out that no line has counted yet.
func (l *Limiter) Close() { l.flush(l.now().Add(2 * Pause)) }

func (l *Limiter) flush(now time.Time) {
	var lines []kind
	due := func(k *kind) bool { return now.Sub(k.last) >= Pause && k.suppressed > 0 }
	l.mu.Lock()
	for key, k := range l.kinds {
		switch {
		case due(k):
			lines = append(lines, *k)
			k.last, k.written, k.suppressed = now, 1, 0
		case now.Sub(k.last) >= Pause:
			delete(l.kinds, key)
		}
	}
	if due(&l.others) {
		lines = append(lines, l.others)
		l.others.last, l.others.suppressed = now, 0
	}
	for i := range lines {
		lines[i].message = cmp.Or(l.more[lines[i].message], "more: "+lines[i].message)
	}
	l.mu.Unlock()
	for _, k := range lines {
		l.log.LogAttrs(context.Background(), k.level, k.message, append(k.attrs, slog.Int("suppressed", k.suppressed))...)
	}
}
