// Package monotime is the monotonic clock of the relay: a jump of the wall clock
// moves no deadline.
package monotime

import (
	"sync/atomic"
	"time"
)

// base anchors the clock.
var base = time.Now()

// Now returns the time since the process began. It is never 0, so 0 can stand
// for no time.
func Now() time.Duration { return time.Since(base) + 1 }

// Atomic is a time that several goroutines read and write. The zero value is 0.
type Atomic struct{ ns atomic.Int64 }

// Load returns the time.
func (a *Atomic) Load() time.Duration { return time.Duration(a.ns.Load()) }

// Store sets the time.
func (a *Atomic) Store(t time.Duration) { a.ns.Store(int64(t)) }
