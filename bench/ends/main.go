//go:build linux

package main

import "longhaul/bench/kit"

func main() { kit.Main(Experiment()) }
