package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"longhaul/bench/peers"
)

// monitoringContenders are the relay of this tree with all of its monitoring and
// without, with the log as it is by default and with one in which no flow is told.
var monitoringContenders = []contender{
	{Relay: peers.Unmonitored("without"), descriptors: 2},
	{Relay: peers.Monitored("monitored"), descriptors: 2},
	{Relay: peers.Unmonitored("without-log", "--log-level", "error"), descriptors: 2},
	{Relay: peers.Monitored("monitored-without-log", "--log-level", "error"), descriptors: 2},
}

// monitoringPairs are those of them that are compared.
var monitoringPairs = []pair{{"without", "monitored"}, {"without-log", "monitored-without-log"}}

// monitoringMeasures are those that monitoring could cost something. At a rate
// that leaves the machine some room processor time is the same from run to run;
// where all is busy, whoever reads what monitoring shows takes from the relay.
var monitoringMeasures = func() []measure {
	list := []measure{
		{
			name: "connections-paced", title: "6000 new connections in a second: connect, 64 bytes there and back, the target ends",
			load:    load{clients: 64, reply: requestSize, renew: true, rate: 6000},
			metrics: []metric{rate, cpuEach, p50, p99},
		},
		{
			name: "pingpong100-paced", title: "64 bytes there and back, 100 flows, 30 000 in a second",
			load:    load{clients: 100, reply: requestSize, rate: 30_000},
			metrics: []metric{rate, cpuEach, p50, p99},
		},
		{
			name: "1000-flows-paced", title: "1000 flows with 64 kB replies, 8000 in a second, threads: 2", threads: 2,
			load:    load{clients: 1000, reply: growthReply, rate: 8000},
			metrics: []metric{goodput, cpuPerGB, p50, p99, memory},
		},
		{
			name: "10000-flows-paced", title: "10 000 flows with 64 kB replies, 4000 in a second, threads: 2", threads: 2,
			load:    load{clients: 10_000, reply: growthReply, rate: 4000},
			metrics: []metric{goodput, cpuPerGB, cpuShare, memory},
		},
	}
	for _, m := range slices.Concat(measures, growthMeasures) {
		switch m.name {
		case "bulk16", "connections", "pingpong100", "idle", "1000-flows-2-threads", "10000-flows-2-threads":
			list = append(list, m)
		}
	}
	return list
}()

// watch asks for a relay's metrics each second, as Prometheus may, and has the
// dashboard's page of flows open, until the returned function is called. That
// returns an error if one of them could not be had.
func watch(ctx context.Context, relay peers.Address) (stop func() error) {
	at := func(port int, path string) string {
		return "http://" + peers.Address{Host: relay.Host, Port: port}.String() + path
	}
	ctx, cancel := context.WithCancel(ctx)
	client := &http.Client{Transport: &http.Transport{}}
	ended := make(chan error, 2)
	go func() { ended <- scrape(ctx, client, at(peers.MetricsPort, "/metrics")) }()
	go func() {
		ended <- live(ctx, client, at(peers.DashboardPort, "/api/v1/live?view=flows&sort=-rate&size=50"))
	}()
	return func() error {
		cancel()
		defer client.CloseIdleConnections()
		return errors.Join(<-ended, <-ended)
	}
}

// scrape reads the metrics each second.
func scrape(ctx context.Context, client *http.Client, url string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		body, err := get(ctx, client, url)
		if err == nil {
			_, err = io.Copy(io.Discard, body)
			body.Close()
		}
		if err != nil {
			return unlessCancelled(ctx, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// live reads server-sent events.
func live(ctx context.Context, client *http.Client, url string) error {
	body, err := get(ctx, client, url)
	if err != nil {
		return unlessCancelled(ctx, err)
	}
	defer body.Close()
	events := bufio.NewScanner(body)
	events.Buffer(nil, 1<<20)
	for events.Scan() {
		if strings.HasPrefix(events.Text(), "event: trouble") {
			return errors.New("the dashboard has trouble")
		}
	}
	err = events.Err()
	if err == nil {
		err = errors.New("the dashboard ended its events")
	}
	return unlessCancelled(ctx, err)
}

// unlessCancelled is the error, or nil if there was nothing more to do.
func unlessCancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func get(ctx context.Context, client *http.Client, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return resp.Body, nil
}
