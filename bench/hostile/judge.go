package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"longhaul/test/hostile"
)

// The bounds.
const (
	maxGrowth      = 64 << 20 // bytes of memory that is no payload, above the relay without the attack
	maxDescriptors = 4096     // above the relay without the attack
	maxEchoDelay   = 100 * time.Millisecond
	maxAnswer      = time.Second      // of status and /healthz
	maxSilence     = 2 * time.Second  // of the honest flow
	maxJoin        = 2 * time.Second  // longer than without the attack, until a new pair stands
	maxNewFlow     = 2 * time.Second  // until a client of the honest pair has an answer
	maxLines       = 10               // a second, of one message in the log
	backWithin     = 10 * time.Second // of the attack's end
	maxPayload     = 512 << 20        // bytes, of a relay that reports no budget

	payloadSlack    = 1 << 20 // of the honest flow, which goes on
	descriptorSlack = 32
)

// tooLarge ends an attack early: the machine has other users.
const tooLarge = 6 << 30

// outcome is what one attack did.
type outcome struct {
	Name     string       `json:"name"`
	Role     hostile.Role `json:"role"`
	Does     string       `json:"does"`
	Limit    string       `json:"memory_limit"`
	Sent     hostile.Sent `json:"sent"`
	Cut      bool         `json:"cut_short"` // the relay took more than the machine can give
	Before   *phase       `json:"before"`
	During   *phase       `json:"during"`
	After    *phase       `json:"after"`
	Back     back         `json:"back"`
	Died     string       `json:"died,omitempty"` // how the relay ended
	Verdicts []verdict    `json:"bounds"`
}

// back is how long after the attack's end things were as before, in seconds; -1: not within
// backWithin.
type back struct {
	Payload     float64 `json:"payload_s"`
	Descriptors float64 `json:"descriptors_s"`
	Memory      float64 `json:"memory_s"`
	Resident    int64   `json:"resident_B"` // at last
}

// verdict is one bound and whether it held.
type verdict struct {
	Bound string `json:"bound"`
	Got   string `json:"got"`
	Holds bool   `json:"holds"`
}

func (o *outcome) ok() bool {
	for _, v := range o.Verdicts {
		if !v.Holds {
			return false
		}
	}
	return true
}

// run runs one scenario.
func (b *bench) run(ctx context.Context, s scenario) (*outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.tell("%s: start", s.name)
	answering, err := target(ctx)
	if err != nil {
		return nil, err
	}
	defer answering.Close()
	t, err := b.newSite(ctx, s)
	if t != nil {
		defer t.close()
	}
	if err != nil {
		return nil, err
	}
	o := &outcome{Name: s.name, Role: s.attack.Role, Does: s.attack.Does, Limit: b.memoryLimit}
	if s.unlimited {
		o.Limit = "none"
	}
	watch := &observer{victim: t.victim}
	watching, stop := context.WithCancel(ctx)
	wait := watch.watch(watching, t.client())
	defer wait()
	defer stop()
	pause(ctx, time.Second) // the first connections are made

	o.Before = watch.begin()
	b.tell("%s: before", s.name)
	if err := t.phase(ctx, watch, o.Before, b.time/2); err != nil {
		return nil, err
	}
	for until := time.Now().Add(patience); !watch.saw(o.Before) && ctx.Err() == nil && time.Now().Before(until); {
		pause(ctx, b.time/2) // the machine is busy
	}
	o.During = watch.begin()
	b.tell("%s: attack", s.name)
	if err := t.attacked(ctx, watch, o); err != nil {
		return nil, err
	}
	o.After = watch.begin()
	b.tell("%s: after", s.name)
	o.Back = watch.recover(ctx, o.Before, kept[s.attack.Name])
	watch.begin()
	stop()
	wait()
	o.Died = t.victim.end()
	o.judge()
	return o, ctx.Err()
}

func (b *bench) tell(format string, args ...any) {
	fmt.Fprintf(b.progress, "\r\x1b[K"+format, args...)
}

// phase waits so long, and has a relay come meanwhile if the victim is a far one.
func (t *site) phase(ctx context.Context, watch *observer, p *phase, d time.Duration) error {
	ends := time.After(d)
	if t.s.attack.Role != hostile.FarPeer {
		pause(ctx, d/3)
		took, err := t.join(ctx)
		if err != nil && ctx.Err() == nil && t.victim.running() {
			return err
		}
		watch.note(ctx, func(*phase) { p.Join = took.Seconds() })
	}
	for {
		select {
		case <-ends:
			return ctx.Err()
		case <-ctx.Done():
			return ctx.Err()
		case <-t.victim.exited:
			return nil
		case <-time.After(100 * time.Millisecond):
			if watch.taken() > tooLarge {
				return errTooLarge
			}
		}
	}
}

// patience is for a busy machine to show anything before an attack.
const patience = 30 * time.Second

var errTooLarge = errors.New("the relay takes more memory than this machine has to give")

// attacked runs the attack.
func (t *site) attacked(ctx context.Context, watch *observer, o *outcome) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := t.startAttack(t.b.time + joinWithin + time.Minute)
	if err != nil {
		return err
	}
	if t.s.attack.Role == hostile.FarPeer {
		attackedClients(ctx, fmt.Sprintf("%s:%d", victimHost, attackedPort))
	}
	err = t.phase(ctx, watch, o.During, t.b.time)
	if o.Cut = errors.Is(err, errTooLarge); o.Cut {
		err = nil
	}
	sent, attackErr := r.end()
	o.Sent = sent
	return errors.Join(err, attackErr)
}

// taken is the memory that the relay has.
func (o *observer) taken() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.resident
}

// kept is how many descriptors an attack may leave behind: flows that wait for a lane as long as
// their tunnel's resumption lets them.
var kept = map[string]int{"resume-forever": maxFlows}

// recover waits until payload, descriptors and memory are what they were, but for so many
// descriptors that flows keep.
func (o *observer) recover(ctx context.Context, before *phase, kept int) back {
	b := back{Payload: -1, Descriptors: -1, Memory: -1}
	begun := time.Now()
	for time.Since(begun) < backWithin && ctx.Err() == nil && (b.Payload < 0 || b.Descriptors < 0 || b.Memory < 0) {
		pause(ctx, 100*time.Millisecond)
		o.mu.Lock()
		since := time.Since(begun).Seconds()
		b.note(&b.Payload, since, o.payload <= before.Payload+payloadSlack && o.answered.After(begun))
		b.note(&b.Descriptors, since, o.open <= before.Descriptors+descriptorSlack+kept)
		b.note(&b.Memory, since, o.unpaid <= before.Unpaid+maxGrowth)
		b.Resident = o.resident
		o.mu.Unlock()
	}
	return b
}

func (back) note(at *float64, since float64, now bool) {
	if *at < 0 && now {
		*at = since
	}
}

// judge holds what was observed against the bounds.
func (o *outcome) judge() {
	add := func(holds bool, bound, got string, args ...any) {
		o.Verdicts = append(o.Verdicts, verdict{bound, fmt.Sprintf(got, args...), holds})
	}
	d, before := o.During, o.Before
	longest := func(read func(*phase) float64) float64 { return max(read(d), read(o.After)) }
	seconds := func(d time.Duration) float64 { return d.Seconds() }

	growth := max(d.Unpaid, o.After.Unpaid) - before.Unpaid
	add(growth <= maxGrowth && !o.Cut, "not payload: + 64 MiB", "+ %s (RSS %s, Go heap %s)", mib(growth), mib(d.Resident), mib(d.HeapInUse))
	budget, payload := d.Budget, max(d.Payload, o.After.Payload)
	if budget == 0 {
		budget = maxPayload
	}
	allowed := "no budget"
	if d.Budget > 0 {
		allowed = mib(d.Budget)
	}
	add(payload <= budget, "payload within its budget", "%s of %s", mib(payload), allowed)
	add(o.Back.Payload >= 0, "payload back in 10 s", "%s", after(o.Back.Payload))
	add(d.Descriptors <= before.Descriptors+maxDescriptors, "descriptors: + 4096", "%d, before %d", d.Descriptors, before.Descriptors)
	add(o.Back.Descriptors >= 0, "descriptors back in 10 s", "%s", after(o.Back.Descriptors))
	delay := d.EchoP99 - before.EchoP99
	add(delay <= seconds(maxEchoDelay) && d.EchoFailed == 0, "plain echo p99: + 100 ms", "%.1f ms, before %.1f; %d failed",
		d.EchoP99*1e3, before.EchoP99*1e3, d.EchoFailed)
	add(d.Plain.Failed == 0, "plain connections: all", "%d of %d failed", d.Plain.Failed, d.Plain.Tried)
	status := longest(func(p *phase) float64 { return p.Status.Longest })
	failed := d.Status.Failed + o.After.Status.Failed
	add(status <= seconds(maxAnswer) && failed == 0, "status: 1 s", "%.2f s, %d failed", status, failed)
	health := longest(func(p *phase) float64 { return p.Health.Longest })
	failed = d.Health.Failed + o.After.Health.Failed
	add(health <= seconds(maxAnswer) && failed == 0, "/healthz: 1 s", "%.2f s, %d failed", health, failed)
	broken, ended := d.Honest.Broken+o.After.Honest.Broken, d.Honest.Ended+o.After.Honest.Ended
	stalled := longest(func(p *phase) float64 { return p.Honest.Stalled })
	add(broken == 0 && ended == 0 && stalled <= seconds(maxSilence), "honest flow: whole, silent 2 s at most", "%d broken, %d ended, silent %.1f s",
		broken, ended, stalled)
	refused := d.HonestNew.Failed + o.After.HonestNew.Failed
	slowest := longest(func(p *phase) float64 { return p.HonestNew.Longest })
	add(refused == 0 && slowest <= seconds(maxNewFlow), "honest new flows: all, in 2 s", "%d of %d failed, %.1f s", refused,
		d.HonestNew.Tried+o.After.HonestNew.Tried, slowest)
	if o.Role != hostile.FarPeer {
		add(d.Join <= before.Join+seconds(maxJoin), "new pair: + 2 s", "%.1f s, before %.1f", d.Join, before.Join)
	}
	busiest := d
	if o.After.LogLines > d.LogLines {
		busiest = o.After
	}
	add(busiest.LogLines <= maxLines, "log: 10 of a kind a second", "%d of %q", busiest.LogLines, busiest.LogMessage)
	add(o.Died == "", "the relay lives", "%v", o.Died == "")
}

func mib(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }

func after(seconds float64) string {
	if seconds < 0 {
		return "not in 10 s"
	}
	return fmt.Sprintf("%.1f s", seconds)
}

// writeText writes all bounds of one attack.
func (o *outcome) writeText(out io.Writer) {
	fmt.Fprintf(out, "%s (%s): %s\n  sent: %d connections (%d refused), %d messages, %s\n", o.Name, o.Role, o.Does,
		o.Sent.Connections, o.Sent.Refused, o.Sent.Messages, mib(o.Sent.Bytes))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, v := range o.Verdicts {
		mark := "ok"
		if !v.Holds {
			mark = "FAIL"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", mark, v.Bound, v.Got)
	}
	w.Flush()
	fmt.Fprintln(out, o.Died)
}

// writeTable writes a line for each attack.
func writeTable(out io.Writer, all []*outcome) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "attack\tRSS MiB\tpayload\tfds\techo p99 ms\tstatus s\tsilent s\tpair s\tlog/s\tbroken bounds\t")
	for _, o := range all {
		var broken []string
		for _, v := range o.Verdicts {
			if !v.Holds {
				what, _, _ := strings.Cut(v.Bound, ":")
				broken = append(broken, what)
			}
		}
		d := o.During
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.0f\t%.2f\t%.1f\t%.1f\t%d\t%d of %d\t\n", o.Name, d.Resident>>20, d.Payload>>20, d.Descriptors,
			d.EchoP99*1e3, max(d.Status.Longest, o.After.Status.Longest), d.Honest.Stalled, d.Join, max(d.LogLines, o.After.LogLines), len(broken), len(o.Verdicts))
	}
	w.Flush()
}
