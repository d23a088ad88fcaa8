// Command congestion runs congestion controls over lossy, shared, changing and policed
// paths.
//
//	go run ./bench/congestion --sharing --queue 0.5,1,4 --against cubic
package main

import (
	"longhaul/bench/kit"
	"longhaul/lab/congestion"
)

func main() { kit.Main(congestion.Experiment()) }
