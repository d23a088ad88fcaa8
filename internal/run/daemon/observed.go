package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"longhaul/internal/run/control"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/remedy"
)

// After an upgrade only the new process's metrics are read. What the older one observes of its last flows, for
// histograms, it passes on to the new one's control socket. Of the other metrics its flows have no more part.

const (
	maxPassedOn      = 64       // in a request
	maxPassedOnBytes = 12 << 10 // a control socket takes 16 KiB of arguments
	passOnPatience   = 2 * time.Second
	passOnAltogether = 10 * time.Second // at the end of the process, for what all its last flows were
)

// passOnTo has what this process observes from now on counted by the one that has taken over; an empty path is that
// of an older program, or of one without a control socket.
func (d *daemon) passOnTo(path string) {
	if path == "" {
		return
	}
	d.ended.monitor.PassOn(func(all []monitor.Observation) (taken int, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), passOnAltogether)
		defer cancel()
		for len(all) > 0 {
			arguments, n, err := encodeObservations(all)
			if err != nil {
				return taken, err
			}
			one, cancel := context.WithTimeout(ctx, passOnPatience)
			_, err = control.Do(one, path, "observed", arguments)
			cancel()
			if err != nil {
				return taken, err
			}
			taken, all = taken+n, all[n:]
		}
		return taken, nil
	})
}

// encodeObservations encodes as many of the first ones as a request has room for.
func encodeObservations(all []monitor.Observation) (arguments url.Values, n int, err error) {
	for n = min(len(all), maxPassedOn); ; n /= 2 {
		text, err := json.Marshal(all[:n])
		if err != nil {
			return nil, n, err
		}
		arguments = url.Values{"flows": {string(text)}}
		if n == 1 || len(arguments.Encode()) <= maxPassedOnBytes {
			return arguments, n, nil
		}
	}
}

// observed takes what an older process passes on.
func (d *daemon) observed(_ context.Context, arguments url.Values) (any, error) {
	var all []monitor.Observation
	if err := json.Unmarshal([]byte(arguments.Get("flows")), &all); err != nil {
		return nil, remedy.New(fmt.Errorf("read what another process observed: %w", err), "only an older process of this relay asks for this")
	}
	d.ended.monitor.Observe(all)
	return struct{}{}, nil
}
