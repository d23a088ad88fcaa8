package main

import "fmt"

// growthReply is the reply of the growth measures: large enough that moving
// it is most of the work, small enough that 10 000 of them fit the machine.
const growthReply = 64 << 10

// growthMeasures put more and more busy flows on one and two threads.
var growthMeasures = func() (list []measure) {
	for _, threads := range []int{1, 2} {
		for _, flows := range []int{100, 1000, 10_000} {
			list = append(list, measure{
				name:    fmt.Sprintf("%dx%d", flows, threads),
				title:   fmt.Sprintf("%d busy flows, threads: %d", flows, threads),
				threads: threads,
				load:    load{clients: flows, reply: growthReply},
				metrics: []metric{goodput, cpuPerGB, p50, p99, memory},
			})
		}
	}
	return list
}()

func plotGrowth(dir string, r *result) error { return fmt.Errorf("not yet") }
