package main

import (
	"testing"

	"longhaul/internal/find/doctor"
)

// undrawn are the causes without a scenario here, and why.
var undrawn = map[doctor.Cause]string{
	doctor.Nagle:                   "it needs programs that answer each other: bench/livepaths has them",
	doctor.SpuriousRetransmissions: "no condition of a path makes them alone: doctor has a record of them",
	doctor.Outage:                  "nothing moves, so there is no prediction to judge: bench/livepaths has it",
	doctor.Reset:                   "nothing moves after it: doctor has a record of it",
	doctor.PairDown:                "no connection shows it: cmd/longhaul's doctor_pairs.txtar has it",
	doctor.Loss:                    "only a glance names it, which predicts nothing",
	doctor.Stalled:                 "only a glance names it, which predicts nothing",
	doctor.Unexplained:             "it is the lack of a cause",
}

// TestEachCauseIsDrawn holds that a new cause gets a scenario, or a reason to have none.
func TestEachCauseIsDrawn(t *testing.T) {
	drawn := map[doctor.Cause]bool{}
	for _, s := range Draw(20*len(kinds), 7, nil) {
		if len(s.Hindrances) == 0 {
			drawn[doctor.Healthy] = true
		}
		for _, cause := range s.Hindrances {
			drawn[cause] = true
		}
	}
	for _, cause := range doctor.Causes() {
		why := undrawn[cause]
		switch {
		case drawn[cause] && why != "":
			t.Errorf("%s is drawn, and is said to be not: %s", cause, why)
		case !drawn[cause] && why == "":
			t.Errorf("no scenario draws %s, and undrawn has no reason for that", cause)
		}
	}
}
