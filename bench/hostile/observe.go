package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// opened counts connections that were tried.
type opened struct {
	Tried   int     `json:"tried"`
	Failed  int     `json:"failed"`
	Longest float64 `json:"longest_s"`
}

// answers counts what a relay was asked.
type answers struct {
	Asked   int     `json:"asked"`
	Failed  int     `json:"failed"`
	Longest float64 `json:"longest_s"`
}

func (a *answers) add(took time.Duration, err error) {
	a.Asked++
	a.Longest = max(a.Longest, took.Seconds())
	if err != nil {
		a.Failed++
	}
}

// phase is what was observed in one part of a scenario.
type phase struct {
	Seconds     float64 `json:"seconds"`
	Resident    int64   `json:"resident_max_B"`
	Unpaid      int64   `json:"resident_without_payload_max_B"` // what is no payload
	Payload     int64   `json:"payload_max_B"`
	Budget      int64   `json:"payload_budget_B"` // 0: the relay reports none
	HeapInUse   int64   `json:"go_heap_in_use_max_B"`
	Descriptors int     `json:"descriptors_max"`
	Flows       int64   `json:"flows_max"`
	Goroutines  int     `json:"goroutines_max"`
	Status      answers `json:"status"`
	Health      answers `json:"healthz"`
	EchoP50     float64 `json:"echo_p50_s"`
	EchoP99     float64 `json:"echo_p99_s"`
	EchoFailed  int     `json:"echo_failed"`
	Plain       opened  `json:"plain_new"`
	HonestNew   opened  `json:"honest_new"`
	Honest      struct {
		Bytes   int64   `json:"bytes"`
		Broken  int     `json:"broken"`
		Ended   int     `json:"ended"`
		Why     string  `json:"why,omitempty"`
		Stalled float64 `json:"longest_silence_s"`
	} `json:"honest"`
	Join       float64 `json:"new_pair_s"` // until a relay that comes has its session
	LogMessage string  `json:"busiest_log_message"`
	LogLines   int     `json:"busiest_log_message_per_s"`

	begun time.Time
	echo  []time.Duration
}

// observer watches one relay from outside.
type observer struct {
	victim *relay

	mu       sync.Mutex
	now      *phase
	payload  int64     // of the latest answer
	answered time.Time // when that was asked for
	resident int64     // latest
	unpaid   int64     // latest
	open     int       // latest
}

// begin begins a phase and ends the one before.
func (o *observer) begin() *phase {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now != nil {
		o.now.end(o.victim)
	}
	o.now = &phase{begun: time.Now()}
	return o.now
}

func (p *phase) end(victim *relay) {
	p.Seconds = time.Since(p.begun).Seconds()
	p.LogMessage, p.LogLines = victim.busiest(p.begun, time.Now())
	slices.Sort(p.echo)
	if n := len(p.echo); n > 0 {
		p.EchoP50, p.EchoP99 = p.echo[n/2].Seconds(), p.echo[n*99/100].Seconds()
	}
}

// saw reports whether something was observed of the relay and of the honest flow.
func (o *observer) saw(p *phase) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return p.Resident > 0 && p.Status.Asked > 0 && p.Honest.Bytes > 0
}

// note adds to what is known of the phase, unless all is over.
func (o *observer) note(ctx context.Context, add func(*phase)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() == nil && o.now != nil {
		add(o.now)
	}
}

// watch observes until ctx ends.
func (o *observer) watch(ctx context.Context, client string) (wait func()) {
	var running sync.WaitGroup
	plain := fmt.Sprintf("%s:%d", victimHost, plainPort)
	running.Go(func() { every(ctx, 200*time.Millisecond, func() { o.look(ctx) }) })
	running.Go(func() { every(ctx, 250*time.Millisecond, func() { o.ask(ctx) }) })
	running.Go(func() { o.healthz(ctx) })
	running.Go(func() { o.echoes(ctx, plain) })
	running.Go(func() { o.newFlows(ctx, plain, func(p *phase) *opened { return &p.Plain }) })
	running.Go(func() { o.newFlows(ctx, client, func(p *phase) *opened { return &p.HonestNew }) })
	running.Go(func() { o.steady(ctx, client) })
	return running.Wait
}

// look reads what the kernel knows of the relay.
func (o *observer) look(ctx context.Context) {
	resident, err := o.victim.resident()
	if err != nil {
		return // it has ended, which is seen elsewhere
	}
	open, err := o.victim.descriptors()
	if err != nil {
		return
	}
	o.note(ctx, func(p *phase) {
		o.resident, o.open = resident, open
		p.Resident, p.Descriptors = max(p.Resident, resident), max(p.Descriptors, open)
	})
}

// ask asks for the relay's status. Payload can come and go by a gigabyte in a second, so the memory
// beside it is the least that the kernel says just before and just after the answer.
func (o *observer) ask(ctx context.Context) {
	before, errBefore := o.victim.resident()
	begun := time.Now()
	status, err := o.victim.status(ctx)
	took := time.Since(begun)
	after, errAfter := o.victim.resident()
	o.note(ctx, func(p *phase) {
		p.Status.add(took, err)
		if err != nil {
			return
		}
		p.Flows, p.Goroutines = max(p.Flows, status.FlowsNow), max(p.Goroutines, status.Process.Goroutines)
		if status.Pairs != nil {
			o.payload, o.answered = status.Pairs.RetainedBytes, begun
			if errBefore == nil && errAfter == nil {
				o.unpaid = min(before, after) - o.payload
				p.Unpaid = max(p.Unpaid, o.unpaid)
			}
			p.Payload, p.Budget = max(p.Payload, o.payload), status.Pairs.RetainedLimitBytes
		}
	})
}

// healthz asks whether the relay is healthy, and now and then how large its heap is.
func (o *observer) healthz(ctx context.Context) {
	client := http.Client{Timeout: dialWithin, Transport: &http.Transport{DisableKeepAlives: true}}
	base := fmt.Sprintf("http://%s:%d", victimHost, httpPort)
	turn := 0
	every(ctx, 250*time.Millisecond, func() {
		begun := time.Now()
		_, err := get(ctx, &client, base+"/healthz")
		took := time.Since(begun)
		o.note(ctx, func(p *phase) { p.Health.add(took, err) })
		const metricsEach = 4
		if turn++; turn%metricsEach != 0 {
			return
		}
		if text, err := get(ctx, &client, base+"/metrics"); err == nil {
			o.note(ctx, func(p *phase) { p.HeapInUse = max(p.HeapInUse, metric(text, "go_memstats_heap_inuse_bytes")) })
		}
	})
}

func get(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, response.Status)
	}
	return string(text), err
}

// metric is the value of a metric without labels; 0: there is none.
func metric(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name+" "); found {
			value, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return int64(value)
		}
	}
	return 0
}
