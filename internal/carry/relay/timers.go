package relay

import "time"

// timers is a heap of flows by the time of their next deadline check. Moving
// bytes does not touch the heap: a flow that was active meanwhile is put back
// when its time comes.
type timers []*flow

// schedule ensures that the flow's deadlines are checked no later than at.
func (h *timers) schedule(f *flow, at time.Duration) {
	switch {
	case f.timerIndex < 0:
		f.timerAt = at
		f.timerIndex = int32(len(*h))
		*h = append(*h, f)
		h.up(int(f.timerIndex))
	case at < f.timerAt:
		f.timerAt = at
		h.up(int(f.timerIndex))
	}
}

// remove removes a flow if it is in the heap.
func (h *timers) remove(f *flow) {
	i := int(f.timerIndex)
	if i < 0 {
		return
	}
	last := len(*h) - 1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	f.timerIndex = -1
	if i < last {
		h.down(i)
		h.up(i)
	}
}

// due removes and returns a flow whose time has come, or nil.
func (h *timers) due(now time.Duration) *flow {
	if len(*h) == 0 || (*h)[0].timerAt > now {
		return nil
	}
	f := (*h)[0]
	h.remove(f)
	return f
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timerIndex, h[j].timerIndex = int32(i), int32(j)
}

func (h timers) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].timerAt <= h[i].timerAt {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h timers) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].timerAt < h[least].timerAt {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

// first is the earliest time in the heap, 0 when it is empty.
func (h timers) first() time.Duration {
	if len(h) == 0 {
		return 0
	}
	return h[0].timerAt
}
