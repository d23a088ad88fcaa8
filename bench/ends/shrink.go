package main

import (
	"context"
	"slices"
	"time"
)

const (
	shrinkRuns   = 5                // of each shorter script
	shrinkWanted = 2                // of these must break the rule
	provenRuns   = 10               // of the shortest
	shrinkWays   = time.Second      // in which a shorter script must end
	shrinkTime   = 40 * time.Second // for all shorter scripts
)

// shrink looks for the shortest script that breaks the rule in the same way. It
// takes steps away, then makes sizes and options smaller, as long as that helps.
func shrink(ctx context.Context, s *Script, v *Violation, within time.Duration, breaks func(*Script) *Violation) (shortest *Script, says *Violation, broke, of int) {
	until := time.Now().Add(within)
	says = v
	runs, wanted := shrinkRuns, shrinkWanted
	if v.Kind == KindHang {
		runs, wanted = 1, 1 // each takes its whole time
	}
	try := func(c *Script) bool {
		broke := 0
		for run := 0; run < runs && broke+runs-run >= wanted; run++ {
			if got := breaks(c); got != nil && got.Kind == v.Kind {
				if broke++; broke == wanted {
					s, says = c, got
					return true
				}
			}
		}
		return false
	}
	if !try(s) {
		wanted = 1 // it is rare
	}
	for again := true; again; {
		again = false
		for changed := range smaller(s) {
			if ctx.Err() != nil || time.Now().After(until) {
				break
			}
			if try(changed) {
				again = true
				break
			}
		}
	}
	for range provenRuns {
		if got := breaks(s); got != nil && got.Kind == v.Kind {
			broke, says = broke+1, got
		}
	}
	return s, says, broke, provenRuns
}

// smaller yields scripts that are a little smaller, those first that save most.
func smaller(s *Script) func(yield func(*Script) bool) {
	return func(yield func(*Script) bool) {
		// Steps, several at once first.
		for n := max(s.steps()/2, 1); n >= 1; n /= 2 {
			for i, e := range s.ends() {
				for at := 0; at+n <= len(e.Steps); at++ {
					c := s.clone()
					c.drop(i, at, n)
					if !yield(c) {
						return
					}
				}
			}
		}
		// Options.
		for _, change := range []func(*Script) bool{
			func(c *Script) bool { return clear(&c.FastOpen) },
			func(c *Script) bool { return clear(&c.LateAccept) },
			func(c *Script) bool { return clear(&c.Activated) },
			func(c *Script) bool { return clear(&c.Family) },
			func(c *Script) bool { return clear(&c.Client.SendBuffer) },
			func(c *Script) bool { return clear(&c.Client.ReceiveBuffer) },
			func(c *Script) bool { return clear(&c.Client.NoDelay) },
			func(c *Script) bool { return clear(&c.Client.InLine) },
			func(c *Script) bool { return clear(&c.Client.TakesUrgent) },
			func(c *Script) bool { return clear(&c.Target.SendBuffer) },
			func(c *Script) bool { return clear(&c.Target.ReceiveBuffer) },
			func(c *Script) bool { return clear(&c.Target.NoDelay) },
			func(c *Script) bool { return clear(&c.Target.InLine) },
			func(c *Script) bool { return clear(&c.Target.TakesUrgent) },
		} {
			if c := s.clone(); change(c) && !yield(c) {
				return
			}
		}
		// Sizes.
		for i, e := range s.ends() {
			for at, step := range e.Steps {
				for _, less := range []func(*Step) bool{
					func(t *Step) bool { return clear(&t.More) },
					func(t *Step) bool { return reduce(&t.Chunk, max(t.Bytes, t.Take), t.Op != OpReadEnd) },
					func(t *Step) bool { return reduce(&t.Chunk, wholeRead, t.Op == OpReadEnd) },
					func(t *Step) bool { return lower(&t.Bytes, t.Bytes/16) },
					func(t *Step) bool { return lower(&t.Bytes, t.Bytes/2) },
					func(t *Step) bool { return lower(&t.Bytes, t.Bytes-t.Bytes/8) },
					func(t *Step) bool { return lower(&t.Bytes, t.Bytes-1) },
					func(t *Step) bool { return lower(&t.Take, t.Take/2) },
				} {
					if step.Bytes == 0 && step.Op != OpReadEnd {
						break
					}
					c := s.clone()
					if less(&c.ends()[i].Steps[at]) && !yield(c) {
						return
					}
				}
			}
		}
	}
}

// clear sets what is not yet at its plainest.
func clear[T comparable](v *T) bool {
	var zero T
	if *v == zero {
		return false
	}
	*v = zero
	return true
}

// reduce gives a size another value.
func reduce(v *int, to int, applies bool) bool {
	if !applies || *v == to {
		return false
	}
	*v = to
	return true
}

// lower gives a size a lesser value of at least 1.
func lower(v *int, to int) bool {
	if to < 1 || to >= *v {
		return false
	}
	*v = to
	return true
}

func (s *Script) clone() *Script {
	c := *s
	for _, e := range c.ends() {
		e.Steps = slices.Clone(e.Steps)
	}
	return &c
}

// drop takes n steps of an end away. Its peer waits for what is left of those it
// waited for.
func (s *Script) drop(end, at, n int) {
	e, peer := s.ends()[end], s.ends()[1-end]
	e.Steps = slices.Delete(e.Steps, at, at+n)
	peer.Steps = slices.DeleteFunc(peer.Steps, func(t Step) bool { return t.Op == OpAwait && at < t.Until && t.Until <= at+n && at == 0 })
	for i := range peer.Steps {
		if t := &peer.Steps[i]; t.Op == OpAwait && t.Until > at {
			t.Until = max(at, t.Until-n)
		}
	}
}
