package main

import "fmt"

// growthReply is the reply of the growth measures: large enough that moving
// it is most of the work, small enough that 10 000 of them fit the machine.
const growthReply = 64 << 10

var (
	growthFlows   = []int{100, 1000, 10_000}
	growthThreads = []int{1, 2}
)

// growthMeasures put more and more busy flows on one and two threads.
var growthMeasures = func() (list []measure) {
	for _, threads := range growthThreads {
		for _, flows := range growthFlows {
			list = append(list, measure{
				name:    fmt.Sprintf("%d-flows-%d-threads", flows, threads),
				title:   fmt.Sprintf("%d busy flows, threads: %d", flows, threads),
				threads: threads,
				load:    load{clients: flows, reply: growthReply},
				metrics: []metric{goodput, cpuPerGB, p99, memory},
			})
		}
	}
	return list
}()
