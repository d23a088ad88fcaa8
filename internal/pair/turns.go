package pair

import (
	"runtime"
	"sync"
)

// turns bounds how many handshakes of lanes compute at the same time. After an outage
// hundreds of them are ready at once, and the messages with which flows go on meanwhile
// would wait behind them all. Those that have begun come first: a flow gets a lane early
// that way, in place of all of them late. A nil one has no bound.
type turns struct {
	mu        sync.Mutex
	free      int
	begun     []chan struct{} // wait for their next turn
	beginning []chan struct{} // wait for their first one
}

// newTurns leaves half of the processors to everything else.
func newTurns() *turns { return &turns{free: max(runtime.GOMAXPROCS(0)/2, 1)} }

func (t *turns) begin() {
	if t != nil {
		t.wait(&t.beginning)
	}
}

func (t *turns) goOn() {
	if t != nil {
		t.wait(&t.begun)
	}
}

func (t *turns) wait(queue *[]chan struct{}) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	granted := make(chan struct{})
	*queue = append(*queue, granted)
	t.mu.Unlock()
	<-granted
}

// give ends a turn.
func (t *turns) give() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, queue := range []*[]chan struct{}{&t.begun, &t.beginning} {
		if len(*queue) > 0 {
			close((*queue)[0])
			*queue = (*queue)[1:]
			return
		}
	}
	t.free++
}
