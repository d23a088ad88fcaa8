package flow

import "sync"

// Joint is of a connection within this process that joins two parts of one flow: that of the pair that the
// flow comes from, and that of the pair that it goes on to. A part that resets the connection says why in
// it first, so that the other part need not take the reset for one of a client or a target. A nil
// Joint is of a leg that leads to a client or a target.
type Joint struct {
	mu     sync.Mutex
	reason EndReason
	err    error
}

// Cut notes why a part is about to reset the connection. The first cause stays.
func (j *Joint) Cut(reason EndReason, err error) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.reason == "" {
		j.reason, j.err = reason, err
	}
}

// Cause is why the connection was reset; an empty reason: nobody has said.
func (j *Joint) Cause() (reason EndReason, err error) {
	if j == nil {
		return "", nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.reason, j.err
}
