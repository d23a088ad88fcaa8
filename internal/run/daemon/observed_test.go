package daemon

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"longhaul/internal/watch/monitor"
)

// Requests that pass observations on fit into a control socket's arguments, whatever the names.
func TestObservationsFitIntoRequests(t *testing.T) {
	var all []monitor.Observation
	for i := range 1000 {
		all = append(all, monitor.Observation{Of: monitor.Connect, Tunnel: strings.Repeat("tün", i%300), Hop: "host.example:1", Value: float64(i) / 7})
	}
	var passed []monitor.Observation
	for rest := all; len(rest) > 0; {
		arguments, n, err := encodeObservations(rest)
		if err != nil || n < 1 || n > 1 && len(arguments.Encode()) > maxPassedOnBytes {
			t.Fatalf("%d in %d bytes: %v", n, len(arguments.Encode()), err)
		}
		var some []monitor.Observation
		if err := json.Unmarshal([]byte(arguments.Get("flows")), &some); err != nil {
			t.Fatal(err)
		}
		passed, rest = append(passed, some...), rest[n:]
	}
	if !slices.Equal(passed, all) {
		t.Error("they are not those that were to be passed on")
	}
}
