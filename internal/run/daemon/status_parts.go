package daemon

import (
	"slices"
	"sync"
	"time"
)

// statusPatience is the timeout for the parts of a status, of which a peer, a full disk or
// another process may hold up each. The status names those that are missing.
const statusPatience = 800 * time.Millisecond

// The parts of a status that may be missing.
const (
	partFlows   = "flows"
	partPairs   = "pairs"
	partHost    = "host_changes"
	partLacks   = "lacks"
	partHistory = "history"
	partChecks  = "checks"
	partOlder   = "older_processes"
)

// slowParts remembers the parts that have not answered yet. They are not asked again before that,
// so that calls do not pile up behind what holds them.
type slowParts struct {
	mu   sync.Mutex
	slow map[string]int
}

// partsCall asks for the parts of one status, all at the same time.
type partsCall struct {
	parts   *slowParts
	late    <-chan time.Time
	results []*partResult
}

type partResult struct {
	name string
	done chan struct{} // closed with the result in place; nil: not asked
	set  func()
}

// collect begins a call, whose parts have until late.
func (p *slowParts) collect(late <-chan time.Time) *partsCall {
	return &partsCall{parts: p, late: late}
}

// ask asks for a part, for which wait then calls set.
func ask[T any](c *partsCall, name string, get func() T, set func(T)) {
	r := &partResult{name: name}
	c.results = append(c.results, r)
	c.parts.mu.Lock()
	slow := c.parts.slow[name] > 0
	c.parts.mu.Unlock()
	if slow {
		return
	}
	done := make(chan struct{})
	r.done = done
	go func() {
		value := get()
		r.set = func() { set(value) }
		close(done)
	}()
}

// wait sets the parts that answer in time, and returns the names of the others, sorted.
func (c *partsCall) wait() (missing []string) {
	over := false
	for _, r := range c.results {
		if r.done != nil && !over {
			select {
			case <-r.done:
			case <-c.late:
				over = true
			}
		}
		if r.done == nil || !isClosed(r.done) {
			missing = append(missing, r.name)
			c.parts.remember(r)
			continue
		}
		r.set()
	}
	slices.Sort(missing)
	return missing
}

// remember notes a slow part until it answers.
func (p *slowParts) remember(r *partResult) {
	if r.done == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow == nil {
		p.slow = map[string]int{}
	}
	p.slow[r.name]++
	go func() {
		<-r.done
		p.mu.Lock()
		defer p.mu.Unlock()
		p.slow[r.name]--
	}()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
