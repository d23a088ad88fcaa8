package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// record has what was made to happen at random moments: when, and how often each.
type record struct {
	mu     sync.Mutex
	spells []spell
	counts map[string]int
}

// spell is the time of one of them; to is zero while it lasts.
type spell struct {
	from, to time.Time
	what     string
}

// begin notes a begin, and returns what notes the end.
func (r *record) begin(what string) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[what]++
	at := len(r.spells)
	r.spells = append(r.spells, spell{from: time.Now(), what: what})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.spells[at].to = time.Now()
	}
}

// met lists what has lasted since a moment, or has begun since, with its time from there.
func (r *record) met(since time.Time) (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range slices.Backward(r.spells) {
		to := "now"
		if !s.to.IsZero() {
			if s.to.Before(since) {
				break
			}
			to = fmt.Sprintf("%+.3f s", s.to.Sub(since).Seconds())
		}
		all = append(all, fmt.Sprintf("%s from %+.3f s to %s", s.what, s.from.Sub(since).Seconds(), to))
	}
	slices.Reverse(all)
	return all
}

// String counts each.
func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(r.counts)) {
		parts = append(parts, fmt.Sprintf("%d × %s", r.counts[what], what))
	}
	return strings.Join(parts, ", ")
}

// between is a random time.
func between(dice *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(dice.Int64N(int64(most-least)))
}

// wait waits for a time, or for the end of the context.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
