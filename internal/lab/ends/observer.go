//go:build linux

package ends

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"longhaul/internal/lab/relays"
)

// observer knows which tunnels of some relays have flows, and how the last flow of each
// ended.
type observer struct {
	relays []*relays.Process

	mu     sync.Mutex
	looked time.Time
	busy   map[string]bool // tunnels with flows

	logs sync.Mutex
	ends map[string]string // by relay and tunnel, what the log says of the last flow
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
			o.ends = map[string]string{}
		}
		o.ends[relay+" "+tunnel] = end
	}
}

// said returns what the relays say of the end of a tunnel's last flow, once it has none.
func (o *observer) said(tunnel string) (text string) {
	over := twice(func() bool { return o.idle(tunnel) })
	for until := time.Now().Add(scriptTime); !over() && time.Now().Before(until); {
		time.Sleep(slice)
	}
	o.logs.Lock()
	defer o.logs.Unlock()
	for _, r := range o.relays {
		text += fmt.Sprintf("; the %s relay says %s", r.Name, o.ends[r.Name+" "+tunnel])
	}
	return text
}

// idle says whether a tunnel has no flow in any relay, and none is about to be accepted.
func (o *observer) idle(tunnel string) bool {
	asked := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.looked.Before(asked) { // else another lane has looked since
		o.looked = time.Now()
		o.busy = map[string]bool{}
		for _, r := range o.relays {
			o.look(r)
		}
	}
	return !o.busy[""] && !o.busy[tunnel]
}

// look notes the tunnels of a relay that have flows, in any of its processes; that of no name
// means that a process does not say.
func (o *observer) look(r *relays.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	processes, err := r.StatusOfAll(ctx)
	if err != nil {
		o.busy[""] = true
		return
	}
	for _, status := range processes {
		for _, t := range status.Tunnels {
			if t.FlowsNow > 0 || t.Waiting() > 0 {
				o.busy[t.Name] = true
			}
		}
	}
}
