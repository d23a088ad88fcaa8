// Package metrics exports the state of a monitor as Prometheus metrics.
//
// Labels are names from the configuration and words from fixed lists, so the
// number of series is bounded. A label is never the address of a client or a
// flow.
package metrics

import (
	"compress/gzip"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor"
)

// Options are the sources of the metrics.
type Options struct {
	// Snapshot returns the state to export; its flows are not read.
	Snapshot func() *monitor.Snapshot

	// History returns the state of the history of flows. Nil, or a nil result,
	// means that there is no history; its metrics are omitted.
	History func() *History

	// Detail returns how much is exported; nil means HopDetail.
	Detail func() Detail
}

// Detail is how much of each tunnel is exported.
type Detail string

// The details. With TunnelDetail there are no series by cause and path, of a hop there is only its state, of legs'
// round-trip times only the median, and of a set of states the one that holds. Histograms of connects are those of
// all hops, without the label. Alerts need no more.
const (
	HopDetail    Detail = "hop"
	TunnelDetail Detail = "tunnel"
)

// History is the state of the history of flows.
type History struct {
	Written uint64 // records, since the start
	Dropped uint64 // records that could not be stored
	Bytes   int64  // on disk; negative: unknown
	Ship    []ship.State
}

const (
	maxScrapes    = 8 // at the same time
	scrapeTimeout = 10 * time.Second
)

// Handler serves the metrics of the relay, the Go runtime and the process, as text, as OpenMetrics or in Protocol
// Buffers, by the request's Accept.
func Handler(opts Options) http.Handler {
	words := newVocabularies()
	var size atomic.Int64 // of the last answer: most are as long
	scrape := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := state{Snapshot: opts.Snapshot(), vocabularies: words}
		if opts.History != nil {
			s.history = opts.History()
		}
		if opts.Detail != nil {
			s.detail = opts.Detail()
		}
		e := negotiate(r.Header.Values("Accept"), int(size.Load()+size.Load()/16))
		writeRuntime(e)
		writeFamilies(e, &s)
		writeProcess(e)
		body, contentType := e.finish()
		size.Store(int64(len(body)))
		w.Header().Set("Content-Type", contentType)
		send(w, r, body)
	})
	// TimeoutHandler sends the answer, so a slow reader does not hold up a turn.
	return http.TimeoutHandler(takeTurns(scrape), scrapeTimeout, "the metrics are not ready in time\n")
}

// send answers with a text, compressed for a client that asks for gzip.
func send(w http.ResponseWriter, r *http.Request, b []byte) {
	for _, encoding := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(encoding) != "gzip" {
			continue
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write(b) // errors: the client has gone
		_ = z.Close()
		return
	}
	_, _ = w.Write(b)
}

// takeTurns has at most maxScrapes requests make their answers. The others wait: a refusal would
// leave a gap in the data of a server that asks beside a flood.
func takeTurns(next http.Handler) http.Handler {
	turns := make(chan struct{}, maxScrapes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done(): // the client has gone, or lost its place
		}
	})
}
