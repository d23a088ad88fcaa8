package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"longhaul/bench/peers"
)

// monitoringContenders are the relay of this tree with and without its monitor,
// with the log as it is by default and with one in which no flow is told.
var monitoringContenders = []contender{
	{Relay: peers.Unmonitored("without"), descriptors: 2},
	{Relay: peers.Monitored("monitored"), descriptors: 2},
	{Relay: peers.Unmonitored("without-log", "--log-level", "error"), descriptors: 2},
	{Relay: peers.Monitored("monitored-without-log", "--log-level", "error"), descriptors: 2},
}

// monitoringMeasures are those that monitoring could cost something.
var monitoringMeasures = func() (list []measure) {
	for _, m := range measures {
		switch m.name {
		case "bulk16", "connections", "pingpong100", "idle":
			list = append(list, m)
		}
	}
	for _, m := range growthMeasures {
		if m.name == "1000-flows-2-threads" || m.name == "10000-flows-2-threads" {
			list = append(list, m)
		}
	}
	return list
}()

// scrape asks for a relay's metrics each second, as Prometheus may, until the
// returned function is called. That returns an error if there were none.
func scrape(ctx context.Context, relay peers.Address) (stop func() error) {
	url := "http://" + peers.Address{Host: relay.Host, Port: peers.MetricsPort}.String() + "/metrics"
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		var failed error
		for {
			if err := scrapeOnce(ctx, client, url); err != nil && ctx.Err() == nil {
				failed = err
			}
			select {
			case <-ctx.Done():
				ended <- failed
				return
			case <-tick.C:
			}
		}
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

func scrapeOnce(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
