package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/sys/loglimit"
	"longhaul/internal/words/display"
)

// flowLog writes a line for every ended flow, outside the event loops that report
// them. Refused connections come in floods, so their lines are limited.
type flowLog struct {
	log      *slog.Logger
	refusals *loglimit.Limiter

	mu      sync.Mutex
	records []flow.Record // not yet written
	dropped uint64        // that no line has counted yet
	counted time.Time     // when one did
	wake    chan struct{} // signals new records

	stop     chan struct{}
	stopOnce sync.Once
	done     chan struct{}
}

const (
	flowQueue = 4096
	flowPause = 20 * time.Millisecond // between two writes: a wakeup for every flow costs more than its line
)

const refusedLine = "connection refused"

func newFlowLog(log *slog.Logger) *flowLog {
	l := &flowLog{
		log:      log,
		refusals: loglimit.New(log),
		wake:     make(chan struct{}, 1),
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	l.refusals.Counted(refusedLine, "more connections refused")
	go l.loop()
	return l
}

// add takes records and never waits for the log; it is relay's OnFlows.
func (l *flowLog) add(records []flow.Record) {
	l.mu.Lock()
	taken := min(len(records), flowQueue-len(l.records))
	l.dropped += uint64(len(records) - taken)
	first := len(l.records) == 0
	l.records = append(l.records, records[:taken]...)
	l.mu.Unlock()
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// wanted reports whether flows that end without trouble are logged.
func (l *flowLog) wanted() bool { return l.log.Enabled(context.Background(), slog.LevelInfo) }

// close writes the queued records.
func (l *flowLog) close() {
	l.stopOnce.Do(func() { close(l.stop) })
	<-l.done
}

func (l *flowLog) loop() {
	defer close(l.done)
	tick := time.NewTicker(loglimit.Pause)
	defer tick.Stop()
	pause := time.NewTimer(flowPause)
	pause.Stop()
	defer pause.Stop()
	var spare []flow.Record
	for {
		select {
		case <-l.wake:
			pause.Reset(flowPause)
		case <-pause.C:
			spare = l.writeAll(spare)
		case <-tick.C:
			l.refusals.Flush()
			l.tellDropped(loglimit.Pause)
		case <-l.stop:
			l.writeAll(spare)
			l.tellDropped(0)
			l.refusals.Close()
			return
		}
	}
}

// writeAll writes the queued records and swaps in an empty slice. It returns the old
// slice for reuse.
func (l *flowLog) writeAll(spare []flow.Record) []flow.Record {
	l.mu.Lock()
	records := l.records
	l.records = spare
	l.mu.Unlock()
	for _, r := range records {
		l.write(r)
	}
	l.tellDropped(loglimit.Pause)
	clear(records)
	return records[:0]
}

// tellDropped counts the lines that were dropped, unless it has done so within a pause.
func (l *flowLog) tellDropped(pause time.Duration) {
	l.mu.Lock()
	dropped, now := l.dropped, time.Now()
	if dropped == 0 || now.Sub(l.counted) < pause {
		l.mu.Unlock()
		return
	}
	l.dropped, l.counted = 0, now
	l.mu.Unlock()
	l.log.Warn("dropped flow lines: flows end faster than the log writes", "lines", dropped)
}

func (l *flowLog) write(r flow.Record) {
	switch r.Reason {
	case flow.EndDenied, flow.EndFlowLimit, flow.EndRateLimit, flow.EndShed, flow.EndBadProxyHeader:
		l.refused(r)
		return
	}
	level := slog.LevelInfo
	if r.Reason == flow.EndDamaged || r.Reason == flow.EndNoResources || r.Reason == flow.EndNoLocalPort || r.Reason == flow.EndLoop {
		level = slog.LevelWarn
	}
	if r.Reason == flow.EndCheck {
		level = slog.LevelDebug // health checks come every second
	}
	if l.log.Enabled(context.Background(), level) {
		l.log.LogAttrs(context.Background(), level, "flow", flowAttrs(r)...)
	}
}

func (l *flowLog) refused(r flow.Record) {
	attrs := append([]slog.Attr{
		slog.String("tunnel", r.Tunnel),
		slog.String("client", r.Client.String()),
		slog.String("listen", r.Listen.String()),
		slog.String("reason", string(r.Reason)),
	}, nameAttrs(r)...)
	if r.Err != nil {
		attrs = append(attrs, slog.String("error", r.Err.Error()))
	}
	l.refusals.Log(slog.LevelWarn, refusedLine, []string{"tunnel", "reason"}, attrs...)
}

// flowAttrs are the fields of a flow's line. What is not known is left out.
func flowAttrs(r flow.Record) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("tunnel", r.Tunnel),
		slog.String("client", r.Client.String()),
	}
	if r.Target.IsValid() {
		attrs = append(attrs, slog.String("target", r.Target.String()))
	}
	if r.Hop != "" && r.Hop != r.Target.String() { // a name, of which target is one address
		attrs = append(attrs, slog.String("hop", r.Hop))
	}
	attrs = append(attrs, nameAttrs(r)...)
	seconds := r.Elapsed.Seconds()
	attrs = append(attrs,
		slog.Time("start", r.Start),
		slog.Float64("elapsed_seconds", display.Round(seconds, 1e6)),
		slog.Int64("bytes_up", r.BytesUp),
		slog.Int64("bytes_down", r.BytesDown),
	)
	if seconds > 0 {
		attrs = append(attrs,
			slog.Int64("goodput_up_bps", int64(float64(r.BytesUp)*8/seconds)),
			slog.Int64("goodput_down_bps", int64(float64(r.BytesDown)*8/seconds)))
	}
	attrs = append(attrs, legAttrs("client_", r.ClientLeg)...)
	attrs = append(attrs, legAttrs("target_", r.TargetLeg)...)
	if r.Resumes > 0 || r.Outage > 0 {
		attrs = append(attrs, slog.Int64("resumes", r.Resumes), slog.Float64("outage_seconds", display.Round(r.Outage.Seconds(), 1e3)))
	}
	attrs = append(attrs, slog.String("end", string(r.Reason)), slog.String("ended_by", r.EndedBy()))
	if r.Err != nil {
		attrs = append(attrs, slog.String("error", r.Err.Error()))
	}
	return attrs
}

// nameAttrs are a flow's name, and the other relay of its pair.
func nameAttrs(r flow.Record) (attrs []slog.Attr) {
	if !r.Name.IsZero() {
		attrs = append(attrs, slog.String("name", r.Name.String()))
	}
	if r.Peer != "" {
		attrs = append(attrs, slog.String("peer", r.Peer))
	}
	return attrs
}

func legAttrs(prefix string, s flow.LegRecord) []slog.Attr {
	var attrs []slog.Attr
	if s.Side != "" {
		attrs = append(attrs, slog.String(prefix+"side", s.Side))
	}
	if s.RTT > 0 {
		attrs = append(attrs, slog.Float64(prefix+"rtt_seconds", display.Round(s.RTT.Seconds(), 1e6)))
	}
	if s.MinRTT > 0 {
		attrs = append(attrs, slog.Float64(prefix+"min_rtt_seconds", display.Round(s.MinRTT.Seconds(), 1e6)))
	}
	if s.Retransmits >= 0 {
		attrs = append(attrs,
			slog.Int64(prefix+"retransmits", s.Retransmits),
			slog.String(prefix+"cc", s.CongestionControl))
	}
	return attrs
}
