package main

import (
	"os"
	"testing"
	"time"

	"longhaul/bench/kit"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) {
	if os.Getenv(fleetVariable) != "" {
		os.Exit(runFleet())
	}
	nettest.Main(m)
}

// TestFaults ships for some seconds, while everything dies in turn. Lag is not judged: that is a measurement.
func TestFaults(t *testing.T) {
	nettest.RequireSandbox(t)
	if why := missing(wayPostgres); why != "" {
		t.Skip(why)
	}
	s := suite()
	r, err := s.Run(t.Context(), kit.Options{Program: nettest.Longhaul(t), Cases: []string{"faults"}, Through: []string{wayPostgres}, Repeat: 1, Seed: 1, Time: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		for _, f := range c.Errors {
			t.Errorf("%s through %s: %s", c.Name, f.Way, f.Error)
		}
		for _, f := range c.Figures {
			if f.Name != lagFigure && f.OK != nil && !*f.OK {
				t.Errorf("%s through %s: %s: %v", c.Name, f.Way, f.Name, f.Runs)
			}
		}
	}
}
