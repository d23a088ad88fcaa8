// Package fleet asks many relays at once how they are, over the interface of their
// dashboards, and puts the answers into one table. It only reads.
//
//	relays ─▶ Ask: GET /api/v1/overview of each, maxAtOnce at a time ─▶ Report ─▶ text or JSON
//
// What relays answer is bounded and harmless to a terminal: one that means ill, is
// slow or is away takes nothing from what the others say.
package fleet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// Bounds of what is asked.
const (
	maxAtOnce      = 64      // relays
	maxAnswerBytes = 4 << 20 // of one
)

// Relay is one to ask.
type Relay struct {
	Name      string
	URL       string        // of its dashboard: http://HOST:PORT or https://HOST:PORT
	TokenFile string        // empty: no token
	CA        string        // file of the authorities of its certificate; empty: the system's
	Cert, Key string        // files of the certificate to present and of its key; empty: none
	Timeout   time.Duration // for its whole answer, the connection included
}

// State is how a relay is.
type State string

// The states. A relay of the last three gave no status.
const (
	OK       State = "ok"
	Degraded State = "degraded" // a tunnel or a pair is not usable, or there is a warning
	Draining State = "draining"
	Down     State = "down"    // no connection
	Slow     State = "slow"    // a connection, and no answer in time
	Refused  State = "refused" // it did not take the token, or its certificate is not trusted, or it is no relay
)

var states = []State{OK, Degraded, Draining, Down, Slow, Refused}

// Answer is what is known of a relay.
type Answer struct {
	Name    string        `json:"name"`
	URL     string        `json:"url"`
	State   State         `json:"state"`
	Problem string        `json:"problem,omitempty"` // why it gave no status
	Remedy  string        `json:"remedy,omitempty"`  // of Problem
	Took    units.Seconds `json:"took_seconds"`
	*Figures
}

// Figures are those of a relay that gave a status. A negative count is unknown.
type Figures struct {
	Version       string  `json:"version"` // the release alone
	TunnelsUsable int     `json:"tunnels_usable"`
	Tunnels       int     `json:"tunnels"`
	PairsUp       int     `json:"pairs_up"` // sessions
	Pairs         int     `json:"pairs"`
	PairsDown     []Pair  `json:"pairs_down"`
	UpBps         float64 `json:"up_bps"` // goodput of all tunnels, from clients to targets
	DownBps       float64 `json:"down_bps"`
	FlowsNow      int64   `json:"flows_now"`
	Alerts        []Alert `json:"alerts"` // worst first, those of the dashboard and of the history
	Ship          []Ship  `json:"ship"`   // null: the relay does not say
}

// Pair is a session that is down.
type Pair struct {
	Tunnel  string `json:"tunnel"`
	Peer    string `json:"peer"`
	State   string `json:"state"`
	Problem string `json:"problem,omitempty"` // a clause
}

// Alert is a condition that an operator should look at.
type Alert struct {
	Level string `json:"level"` // critical, warning or notice
	Text  string `json:"text"`
}

// Ship is how records of flows leave a relay for one place.
type Ship struct {
	Sink    string  `json:"sink"`
	Problem string  `json:"problem,omitempty"` // why nothing is delivered
	Remedy  string  `json:"remedy,omitempty"`  // of Problem
	Waiting int64   `json:"waiting"`           // records
	Lost    int64   `json:"lost"`              // records
	Lag     float64 `json:"lag_seconds"`       // age of the oldest record that waits
}

// Options are what asking needs.
type Options struct {
	Resolver *net.Resolver // of the relays' names; nil: the system's
}

// Ask asks all relays, and returns within their timeouts. It reads the files of tokens and authorities
// first, each once.
func Ask(ctx context.Context, relays []Relay, o Options) *Report {
	c := newClient(relays, o)
	answers := make([]Answer, len(relays))
	places := make(chan struct{}, maxAtOnce)
	var all sync.WaitGroup
	for i := range relays {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			begun := time.Now()
			answers[i] = c.ask(ctx, &relays[i])
			answers[i].Name, answers[i].URL = relays[i].Name, relays[i].URL
			answers[i].Took = units.Seconds(time.Since(begun).Round(time.Microsecond))
		})
	}
	all.Wait()
	return newReport(answers, time.Now())
}

// ReadCA reads a file of authorities. The error is a [*remedy.Error].
func ReadCA(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, remedy.New(fmt.Errorf("the file of authorities cannot be read: %w", err), "check the path and its permissions")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, remedy.New(errors.New("the file of authorities "+path+" has no certificate"), "name a file in PEM form")
	}
	return pool, nil
}
