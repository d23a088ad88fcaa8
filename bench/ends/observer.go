//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"longhaul/lab/relays"
)

// observer knows which tunnels of some relays have flows, and how the last flow of each
// ended.
type observer struct {
	relays []*relays.Process
	isDead func(*relays.Process) bool // nil: all live

	mu     sync.Mutex
	looked time.Time
	busy   map[string]string // tunnels with flows, and where these are

	logs sync.Mutex
	ends map[string]ending // by relay and tunnel, of the last flow
}

// ending is what the log says of a flow's end, and when it did.
type ending struct {
	text string
	at   time.Time
}

// listen observes relays that are still to be started.
func (o *observer) listen(to []*relays.Process) {
	o.relays = to
	for _, r := range to {
		r.Line = o.listener(r.Name)
	}
}

// listener keeps what a relay's log says of the end of the last flow of each tunnel.
func (o *observer) listener(relay string) func(string) {
	return func(line string) {
		_, after, found := strings.Cut(line, " tunnel=")
		_, end, ended := strings.Cut(line, " end=")
		if !found || !ended {
			return
		}
		tunnel, _, _ := strings.Cut(after, " ")
		o.logs.Lock()
		defer o.logs.Unlock()
		if o.ends == nil {
			o.ends = map[string]ending{}
		}
		o.ends[relay+" "+tunnel] = ending{end, time.Now()}
	}
}

// said returns what the relays say of the end of a tunnel's flow that began at a moment, and
// which of them still have one.
func (o *observer) said(tunnel string, since time.Time) (text string) {
	over := twice(func() bool { return o.idle(tunnel) })
	for until := time.Now().Add(scriptTime); !over(); time.Sleep(slice) {
		if time.Now().After(until) {
			text += o.where(tunnel)
			break
		}
	}
	o.logs.Lock()
	defer o.logs.Unlock()
	for _, r := range o.relays {
		if end := o.ends[r.Name+" "+tunnel]; end.at.After(since) {
			text += fmt.Sprintf("; the %s relay says after %.3f s: %s", r.Name, end.at.Sub(since).Seconds(), end.text)
		} else {
			text += fmt.Sprintf("; the %s relay says nothing", r.Name)
		}
	}
	return text
}

// endedBecause is the reason that a relay gives for the end of a tunnel's flow that began at a moment;
// empty: it gives none.
func (o *observer) endedBecause(relay, tunnel string, since time.Time) string {
	over := twice(func() bool { return o.idle(tunnel) })
	for until := time.Now().Add(scriptTime); !over() && time.Now().Before(until); time.Sleep(slice) {
	}
	o.logs.Lock()
	defer o.logs.Unlock()
	end := o.ends[relay+" "+tunnel]
	if !end.at.After(since) {
		return ""
	}
	reason, _, _ := strings.Cut(end.text, " ")
	return reason
}

// where says which relays have flows of a tunnel, or do not answer.
func (o *observer) where(tunnel string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.busy[""] + o.busy[tunnel]
}

// idle says whether a tunnel has no flow in any relay, and none is about to be accepted.
func (o *observer) idle(tunnel string) bool {
	asked := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.looked.Before(asked) { // else another lane has looked since
		o.looked = time.Now()
		o.busy = map[string]string{}
		for _, r := range o.relays {
			o.look(r)
		}
	}
	return o.busy[""] == "" && o.busy[tunnel] == ""
}

// look notes the tunnels of a relay that have flows, in any of its processes; that of no name
// means that a process does not say.
func (o *observer) look(r *relays.Process) {
	if o.isDead != nil && o.isDead(r) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	processes, err := r.StatusOfAll(ctx)
	if err != nil && o.isDead != nil && o.isDead(r) {
		return // it has died meanwhile
	}
	if err != nil {
		o.busy[""] += fmt.Sprintf("; the %s relay does not answer: %v", r.Name, err)
		return
	}
	for age, status := range processes {
		for _, t := range status.Tunnels {
			if t.FlowsNow > 0 || t.Waiting() > 0 {
				o.busy[t.Name] += fmt.Sprintf("; the %s relay's process %d upgrades ago has %d flows, and %d wait", r.Name, age, t.FlowsNow, t.Waiting())
			}
		}
	}
}
