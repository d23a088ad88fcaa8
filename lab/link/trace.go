package link

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Trace is what a bottleneck carries over time. The link replays it from the moment
// that it gets it, and from the beginning again after its end. A Trace does not
// change.
//
// It is of one of two kinds:
//   - opportunities to send, as mahimahi records them;
//   - steps, each with a rate, a one-way delay and a loss.
type Trace struct {
	name          string
	opportunities []int64     // ns after the beginning, ascending; the last one is the period
	steps         []TraceStep // ascending, the first at 0
	period        int64       // ns
}

// TraceStep holds from a time of a trace until the next step.
type TraceStep struct {
	From    time.Duration // after the beginning
	RateBps int64         // 0 carries nothing
	Delay   time.Duration // propagation, one way
	Loss    float64       // share, in [0, 1]
}

const (
	// opportunityBytes is the size of an opportunity to send, in bytes of IP
	// packets.
	opportunityBytes = 1500

	maxTraceBytes  = 256 << 20 // of a file
	maxTracePeriod = 7 * 24 * time.Hour
	traceHeader    = "time_s,rate_bps,delay_ms"
	traceLoss      = ",loss"
)

// ReadTrace reads a trace from a file. Its errors name the file and the line.
func ReadTrace(file string) (*Trace, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ParseTrace(filepath.Base(file), f)
}

// ParseTrace parses a trace of a name. Lines that begin with # are comments. The first
// other line tells the format.
//
// In mahimahi's format each line is a whole number of milliseconds, none smaller than
// the one before. It stands for an opportunity to send 1500 bytes. The last one is also
// the length of the trace.
//
// A series begins with the line "time_s,rate_bps,delay_ms", or the same with ",loss".
// Each line below it holds until the time of the next, and the last as long as the one
// before it.
func ParseTrace(name string, r io.Reader) (*Trace, error) {
	t := &Trace{name: name}
	limited := &io.LimitedReader{R: r, N: maxTraceBytes + 1}
	lines := bufio.NewScanner(limited)
	number := 0
	fail := func(format string, values ...any) (*Trace, error) {
		return nil, fmt.Errorf("%s:%d: %s", name, number, fmt.Sprintf(format, values...))
	}
	series, withLoss, begun := false, false, false
	for lines.Scan() {
		number++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var err error
		switch text := string(line); {
		case !begun && strings.HasPrefix(text, traceHeader):
			series, withLoss = true, text == traceHeader+traceLoss
			if !withLoss && text != traceHeader {
				return fail("invalid columns %q: write %s or %s%s", text, traceHeader, traceHeader, traceLoss)
			}
		case series:
			err = t.addStep(text, withLoss)
		default:
			err = t.addOpportunity(text)
		}
		if err != nil {
			return fail("%v", err)
		}
		begun = true
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, number+1, err)
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("%s: larger than %d MiB: take a part of it", name, maxTraceBytes>>20)
	}
	if err := t.end(series); err != nil {
		return fail("%v", err)
	}
	return t, nil
}

func (t *Trace) addOpportunity(text string) error {
	ms, err := strconv.ParseInt(text, 10, 64)
	switch n := len(t.opportunities); {
	case err != nil || ms < 0:
		return fmt.Errorf("invalid line %q: write a number of milliseconds, or begin the file with %s", clip(text), traceHeader)
	case ms > maxTracePeriod.Milliseconds():
		return fmt.Errorf("%d ms is more than %v", ms, maxTracePeriod)
	case n > 0 && ms*int64(time.Millisecond) < t.opportunities[n-1]:
		return fmt.Errorf("%d ms is before the line above", ms)
	}
	t.opportunities = append(t.opportunities, ms*int64(time.Millisecond))
	return nil
}

func (t *Trace) addStep(text string, withLoss bool) error {
	fields := strings.Split(text, ",")
	columns := 3
	if withLoss {
		columns = 4
	}
	if len(fields) != columns {
		return fmt.Errorf("%d columns, not %d", len(fields), columns)
	}
	var values [4]float64
	for i, field := range fields {
		value, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if err != nil {
			return fmt.Errorf("invalid number %q", clip(field))
		}
		values[i] = value
	}
	at, rate, delay, loss := values[0], values[1], values[2], values[3]
	switch {
	case !(at >= 0 && at <= maxTracePeriod.Seconds()):
		return fmt.Errorf("a time of %g s: choose 0 to %g", at, maxTracePeriod.Seconds())
	case !(rate == 0 || rate >= minRateBps && rate <= maxRateBps):
		return fmt.Errorf("a rate of %g bit/s: choose 0, or %d to %d", rate, minRateBps, int64(maxRateBps))
	case !(delay >= 0 && delay <= float64(maxDelay.Milliseconds())):
		return fmt.Errorf("a delay of %g ms: choose 0 to %d", delay, maxDelay.Milliseconds())
	case !(loss >= 0 && loss <= 1):
		return fmt.Errorf("a loss of %g: choose a share from 0 to 1", loss)
	}
	step := TraceStep{
		From:    time.Duration(at * 1e9),
		RateBps: int64(rate),
		Delay:   time.Duration(delay * 1e6),
		Loss:    loss,
	}
	if n := len(t.steps); n == 0 && step.From != 0 {
		return errors.New("the first time must be 0")
	} else if n > 0 && step.From <= t.steps[n-1].From {
		return errors.New("the time is not after that of the line above")
	}
	t.steps = append(t.steps, step)
	return nil
}

// end checks the whole.
func (t *Trace) end(series bool) error {
	if !series {
		if len(t.opportunities) == 0 {
			return errors.New("the trace is empty")
		}
		t.period = t.opportunities[len(t.opportunities)-1]
		if t.period == 0 {
			return errors.New("the trace has no length: its last time is 0")
		}
		return nil
	}
	n := len(t.steps)
	switch n {
	case 0:
		return errors.New("the trace is empty")
	case 1:
		t.period = int64(time.Second)
	default:
		t.period = int64(2*t.steps[n-1].From - t.steps[n-2].From)
	}
	if mean := t.MeanBps(); mean < minRateBps {
		return fmt.Errorf("the trace carries %d bit/s in the mean, less than %d", mean, minRateBps)
	}
	return nil
}

// clip shortens a text of a file for an error.
func clip(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// Name is the name of the file.
func (t *Trace) Name() string { return t.name }

// Period is the time after which the trace begins again.
func (t *Trace) Period() time.Duration { return time.Duration(t.period) }

// HasDelay reports whether the trace has delays. They replace Settings.Delay.
func (t *Trace) HasDelay() bool { return len(t.steps) > 0 }

// MeanBps is the mean rate over a period, in bits per second of whole IP packets.
func (t *Trace) MeanBps() int64 {
	return int64(t.bytesOfPeriod(t.Period()) * 8 / t.Period().Seconds())
}

// Bytes is what the trace carries from one time after its beginning to another.
func (t *Trace) Bytes(from, to time.Duration) float64 { return t.bytesUntil(to) - t.bytesUntil(from) }

func (t *Trace) bytesUntil(at time.Duration) float64 {
	periods, rest := float64(at/t.Period()), at%t.Period()
	if periods > 0 {
		periods *= t.bytesOfPeriod(t.Period())
	}
	return periods + t.bytesOfPeriod(rest)
}

// bytesOfPeriod is what the first period carries until a time.
func (t *Trace) bytesOfPeriod(until time.Duration) float64 {
	if until == 0 {
		return 0
	}
	if t.steps == nil {
		return float64(sort.Search(len(t.opportunities), func(i int) bool { return t.opportunities[i] > int64(until) })) * opportunityBytes
	}
	bytes := 0.0
	t.each(func(s TraceStep, end time.Duration) {
		bytes += float64(s.RateBps) / 8 * max(min(end, until)-s.From, 0).Seconds()
	})
	return bytes
}

// MeanDelay is the mean of the delays over time; 0 without delays.
func (t *Trace) MeanDelay() time.Duration {
	sum := 0.0
	t.each(func(s TraceStep, end time.Duration) { sum += float64(s.Delay) * float64(end-s.From) })
	return time.Duration(sum / float64(t.period))
}

// each calls f for each step and its end.
func (t *Trace) each(f func(s TraceStep, end time.Duration)) {
	for i, s := range t.steps {
		end := t.Period()
		if i+1 < len(t.steps) {
			end = t.steps[i+1].From
		}
		f(s, end)
	}
}

// replay is the position of a bottleneck in a trace. Times are in nanoseconds.
type replay struct {
	*Trace
	origin int64 // when the trace began

	// The present opportunity, and what is left of it. Opportunities count through
	// all periods.
	slot int64
	left int

	hasLoss  bool
	minDelay int64
}

func newReplay(t *Trace, now int64) *replay {
	r := &replay{Trace: t, origin: now, left: opportunityBytes}
	for i, s := range t.steps {
		r.hasLoss = r.hasLoss || s.Loss > 0
		if i == 0 || int64(s.Delay) < r.minDelay {
			r.minDelay = int64(s.Delay)
		}
	}
	return r
}

// ready is the earliest time from at on at which a packet may begin to leave.
func (r *replay) ready(at int64) int64 {
	if r.steps == nil {
		if slot := r.slotFrom(at); slot > r.slot {
			r.slot, r.left = slot, opportunityBytes
		}
		r.nextSlot()
		return r.slotTime(r.slot)
	}
	for {
		step, end := r.at(at)
		if step.RateBps > 0 {
			return at
		}
		at = end
	}
}

// serve sends work from begin on, which ready returned: bits × 1e9. It returns the end and the
// work of the last fraction of a nanosecond.
func (r *replay) serve(begin, work int64) (finish, fraction int64) {
	if r.steps == nil {
		for bytes := int((work + 8e9 - 1) / 8e9); ; {
			now := min(bytes, r.left)
			bytes -= now
			r.left -= now
			if bytes == 0 {
				return r.slotTime(r.slot), 0
			}
			r.nextSlot()
		}
	}
	for {
		step, end := r.at(begin)
		if rate := step.RateBps; rate > 0 {
			if needs := work / rate; needs < end-begin {
				return begin + needs, work % rate
			}
			work -= rate * (end - begin)
		}
		begin = end
	}
}

// nextSlot moves to the next opportunity if the present one is used up.
func (r *replay) nextSlot() {
	if r.left == 0 {
		r.slot++
		r.left = opportunityBytes
	}
}

// slotFrom is the first opportunity from at on.
func (r *replay) slotFrom(at int64) int64 {
	at -= r.origin
	if at <= 0 {
		return 0
	}
	// The last opportunity of a period is at its very end.
	periods := (at - 1) / r.period
	at -= periods * r.period
	i := sort.Search(len(r.opportunities), func(i int) bool { return r.opportunities[i] >= at })
	return periods*int64(len(r.opportunities)) + int64(i)
}

func (r *replay) slotTime(slot int64) int64 {
	n := int64(len(r.opportunities))
	return r.origin + slot/n*r.period + r.opportunities[slot%n]
}

// at is the step that holds at a time, and its end.
func (r *replay) at(at int64) (step TraceStep, end int64) {
	begin := r.origin + (at-r.origin)/r.period*r.period
	i := sort.Search(len(r.steps), func(i int) bool { return int64(r.steps[i].From) > at-begin }) - 1
	end = begin + r.period
	if i+1 < len(r.steps) {
		end = begin + int64(r.steps[i+1].From)
	}
	return r.steps[i], end
}
