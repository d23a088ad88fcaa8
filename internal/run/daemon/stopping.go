package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"longhaul/internal/carry/relay"
	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/sorted"
)

// finished is the outcome of a drain.
type finished struct {
	Leftovers
	err error // of the relay
}

// Leftovers are the flows that had not ended at the end of the drain.
type Leftovers struct {
	Reset int    `json:"flows_reset"`
	Left  int    `json:"flows_left"`        // to the kernel, which delivers their buffered bytes
	Bytes int64  `json:"undelivered_bytes"` // received for a peer, not yet acknowledged by it
	Most  string `json:"most"`              // peer that lacks the most bytes, and its tunnel
}

func (l Leftovers) and(o Leftovers) Leftovers {
	if o.Bytes > 0 && o.Bytes >= l.Bytes {
		l.Most = o.Most
	}
	l.Reset, l.Left, l.Bytes = l.Reset+o.Reset, l.Left+o.Left, l.Bytes+o.Bytes
	return l
}

// UndrainedError reports flows that had not ended when the relay ended.
type UndrainedError struct{ Leftovers }

func (e *UndrainedError) Error() string { return e.Leftovers.String() }

// maxLoggedLeftovers is the maximum number of unended flows that get a log line each.
const maxLoggedLeftovers = 20

// tellLeftovers logs the flows that had not ended, most bytes first, and adds them
// up.
func tellLeftovers(log *slog.Logger, all []relay.Leftover) (sum Leftovers) {
	bytes := func(l relay.Leftover) int64 { return l.ToClientBytes + l.ToTargetBytes }
	sorted.By(all, func(a, b relay.Leftover) int { return cmp.Compare(bytes(b), bytes(a)) })
	for i, l := range all {
		outcome := "reset"
		if l.Delivering {
			sum.Left++
			outcome = "left to the kernel"
		} else {
			sum.Reset++
		}
		sum.Bytes += bytes(l)
		if i == 0 && bytes(l) > 0 {
			peer := l.Client
			if l.ToTargetBytes > l.ToClientBytes {
				peer = l.Target
			}
			sum.Most = fmt.Sprintf("%s of tunnel %s", peer, l.Tunnel)
			if !peer.IsValid() { // of a flow that waits for its hop
				sum.Most = "a target of tunnel " + l.Tunnel
			}
		}
		if i < maxLoggedLeftovers {
			log.Warn("a flow had not ended", "tunnel", l.Tunnel, "client", l.Client.String(), "target", l.Target.String(),
				"undelivered_to_client_bytes", l.ToClientBytes, "undelivered_to_target_bytes", l.ToTargetBytes, "outcome", outcome)
		}
	}
	return sum
}

// String returns the outcome of the flows and the bytes that had not arrived.
func (l Leftovers) String() string {
	var text string
	switch {
	case l.Left == 0:
		text = display.Plural(l.Reset, "flow") + " did not end in time and were reset"
		if l.Reset == 1 {
			text = "1 flow did not end in time and was reset"
		}
	case l.Reset == 0:
		text = display.Plural(l.Left, "flow") + " did not end in time, left to the kernel to deliver"
	default:
		text = fmt.Sprintf("%s did not end in time: %d were reset, %d are left to the kernel to deliver",
			display.Plural(l.Reset+l.Left, "flow"), l.Reset, l.Left)
	}
	if l.Bytes > 0 {
		text += fmt.Sprintf("; %d bytes had not arrived, the most of them for %s", l.Bytes, l.Most)
	}
	return text
}

// olderGrace is the time after the deadline within which an older process must end.
const olderGrace = 5 * time.Second

// finishRequest asks this process to end once its flows have ended.
type finishRequest struct {
	within   time.Duration // for the flows; negative: no bound
	usual    bool          // within is the configured time, and shortens no drain under way
	replaced bool          // meant for a process that has a successor
	answer   chan finished
}

// finish asks a process that has a successor to end: the successor is stopping.
func (o *orders) finish(ctx context.Context, arguments url.Values) (any, error) {
	within, err := time.ParseDuration(arguments.Get("within"))
	if err != nil {
		return nil, err
	}
	if !o.life.isReplaced() {
		return nil, remedy.New(fmt.Errorf("no process has taken over from %d", os.Getpid()), "stop it with longhaul stop")
	}
	all, err := o.askToFinish(ctx, finishRequest{within: within, replaced: true})
	return all.Leftovers, err
}

// askToFinish has the daemon's loop end, and returns the outcome at the end of the
// process.
func (o *orders) askToFinish(ctx context.Context, r finishRequest) (finished, error) {
	r.answer = make(chan finished, 1)
	select {
	case o.finishing <- r:
	case <-ctx.Done():
		return finished{}, ctx.Err()
	}
	select {
	case all := <-r.answer:
		return all, all.err
	case <-ctx.Done():
	}
	// The end of the process also ends ctx, after the answer.
	select {
	case all := <-r.answer:
		return all, all.err
	default:
		return finished{}, ctx.Err()
	}
}

// drain stops accepting and waits for the flows, including those of older processes,
// until the deadline or a second signal. It answers the askers at the end.
func (d *daemon) drain(signals <-chan os.Signal, askers ...finishRequest) error {
	_ = d.life.enter(stopping)
	close(d.orders.ending)
	d.manager.stopping("draining, " + display.Plural(int(d.relay.Flows()), "flow") + " left")
	within := d.life.config.DrainTimeout
	for _, r := range askers {
		if !r.usual {
			within = r.within
		}
	}
	return d.finish(signals, within, true, askers...)
}

// finish waits for the flows at most within, or without bound if that is negative. stopping: this
// process is to end, and older ones finish as part of it. Else another one has taken over, and a
// signal sets the usual deadline.
func (d *daemon) finish(signals <-chan os.Signal, within time.Duration, stopping bool, askers ...finishRequest) error {
	d.integrity.close() // an ending process no longer checks the tunnels
	d.pairs.drain()
	if stopping {
		d.rules.stop()
	}
	ctx, reset := context.WithCancel(context.Background())
	defer reset()
	own := make(chan finished, 1)
	go func() {
		left, err := d.relay.Drain(ctx)
		own <- finished{tellLeftovers(d.log, left), err}
	}()
	// Older processes keep the deadline themselves. Do not wait for one that does
	// not answer then.
	askCtx, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	older := make(chan finished, 1)
	if stopping {
		go func() {
			left, err := d.past.older.finish(askCtx, within)
			older <- finished{left, err}
		}()
	} else {
		older <- finished{}
	}

	var deadline <-chan time.Time
	w := &drain{log: d.log, usual: d.life.config.DrainTimeout, stopping: stopping, waiting: 2, askers: askers,
		setDeadline: func(end time.Time) {
			within := time.Until(end)
			deadline = time.After(within)
			time.AfterFunc(within+olderGrace, giveUp)
			d.life.mu.Lock()
			d.life.endsAt = end
			d.life.mu.Unlock()
		},
		askOlder: func(within time.Duration) { go d.past.older.finish(askCtx, within) }, // the answer goes to the first request
	}
	w.limit(time.Now(), within)
	extend := time.NewTicker(drainExtension / 3)
	defer extend.Stop()
	for w.waiting > 0 {
		select {
		case r := <-own:
			w.ended(r)
		case r := <-older:
			w.ended(r)
		case <-deadline:
			reset()
		case sig := <-signals:
			w.signal(time.Now(), sig)
		case r := <-d.orders.finishing:
			follows := d.life.isReplaced()
			if follows && !r.replaced { // it came during the upgrade
				r.answer <- finished{err: d.life.busy()}
			} else {
				w.asked(time.Now(), r, follows)
			}
		case r := <-d.orders.reloads:
			r.answer <- failedReload(time.Now(), d.life.busy())
		case <-extend.C:
			d.manager.extend()
		}
	}
	return w.conclude()
}
