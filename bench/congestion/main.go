// Command congestion runs congestion controls alone over a path that flags describe.
//
//	go run ./bench/congestion --cc haul,cubic --rtt 600ms --loss 1%
package main

import (
	"longhaul/bench/kit"
	"longhaul/bench/kit/congestion"
)

func main() { kit.Main(congestion.Experiment()) }
