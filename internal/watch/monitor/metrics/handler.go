// Package metrics exports the state of a monitor as Prometheus metrics.
//
// Labels are names from the configuration and words from fixed lists, so the
// number of series is bounded. A label is never the address of a client or a
// flow.
package metrics

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"net/http"
	"strings"
	"sync"
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
	scrape := func(accept []string, small bool) answer {
		s := state{Snapshot: opts.Snapshot(), vocabularies: words}
		if opts.History != nil {
			s.history = opts.History()
		}
		if opts.Detail != nil {
			s.detail = opts.Detail()
		}
		e := negotiate(accept, int(size.Load()+size.Load()/16))
		writeRuntime(e)
		writeFamilies(e, &s)
		writeProcess(e)
		body, kind := e.finish()
		size.Store(int64(len(body)))
		if small {
			body = compressed(body)
		}
		return answer{body: body, kind: kind}
	}
	turns := make(chan struct{}, maxScrapes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		late := time.NewTimer(scrapeTimeout)
		defer late.Stop()
		refuse := func() { http.Error(w, "the metrics are not ready in time", http.StatusServiceUnavailable) }
		// The others wait: a refusal would leave a gap in the data of a server that asks beside a flood.
		select {
		case turns <- struct{}{}:
		case <-late.C:
			refuse()
			return
		case <-r.Context().Done(): // the client has gone, or lost its place
			return
		}
		accept, small := r.Header.Values("Accept"), takesGzip(r.Header.Get("Accept-Encoding"))
		made := make(chan answer, 1)
		go func() {
			defer func() { <-turns }() // a slow reader does not hold it up
			defer func() {
				if failed := recover(); failed != nil {
					made <- answer{failed: failed}
				}
			}()
			made <- scrape(accept, small)
		}()
		select {
		case a := <-made:
			if a.failed != nil {
				panic(a.failed) // the server ends this connection alone
			}
			w.Header().Set("Content-Type", a.kind)
			if small {
				w.Header().Set("Content-Encoding", "gzip")
			}
			_, _ = w.Write(a.body) // an error: the client has gone
		case <-late.C:
			refuse()
		case <-r.Context().Done():
		}
	})
}

// answer is what a client gets.
type answer struct {
	body   []byte
	kind   string // media type
	failed any    // what the scrape panicked with; nil: it did not
}

// takesGzip reports whether a client asks for gzip.
func takesGzip(encodings string) bool {
	for encoding := range strings.SplitSeq(encodings, ",") {
		if strings.TrimSpace(encoding) == "gzip" {
			return true
		}
	}
	return false
}

// compressed is a text in gzip's format, made in its fastest way.
func compressed(body []byte) []byte {
	var small bytes.Buffer
	z := writers.Get().(*gzip.Writer)
	defer writers.Put(z)
	z.Reset(&small)
	_, err := z.Write(body)
	if err = cmp.Or(err, z.Close()); err != nil {
		panic(err) // a buffer takes all
	}
	return small.Bytes()
}

// writers are used again: each has 1 MB, and to make one took as long as the rest of a scrape. There are
// maxScrapes of them at most, until the next collections.
var writers = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is valid
	}
	return z
}}
