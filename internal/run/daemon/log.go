package daemon

import (
	"context"
	"io"
	"log/slog"

	"longhaul/internal/run/config"
)

// logOutput is the part of the log, whose level a reload may change. It never waits for the log's reader.
type logOutput struct {
	*asyncWriter
	level slog.LevelVar
}

// openLog logs to an output.
func openLog(to io.Writer, c config.Log) (*slog.Logger, *logOutput) {
	o := &logOutput{}
	o.setLevel(c.Level)
	direct := newLogger(to, c.Format, &o.level)
	o.asyncWriter = newAsyncWriter(to, func(n uint64) {
		direct.Warn("dropped log lines: the log's reader is too slow", "lines", n)
	})
	return newLogger(o.asyncWriter, c.Format, &o.level), o
}

func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func (o *logOutput) Prepare(_ context.Context, p *plan) (Change, error) {
	return setting(func() { o.setLevel(p.Log.Level) }), nil
}

func (o *logOutput) setLevel(name string) {
	var l slog.Level
	// The configuration accepts only slog's names.
	_ = l.UnmarshalText([]byte(name))
	o.level.Set(l)
}
