package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"longhaul/bench/kit"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == sender {
		if err := sendTraffic(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "diagnosis:", err)
			os.Exit(1)
		}
		return
	}
	kit.Main(Experiment())
}

// sender is the argument that makes this program the sending one of a scenario, with the
// transfers on standard input.
const sender = "traffic"

func sendTraffic(ctx context.Context) error {
	var traffic Traffic
	if err := json.NewDecoder(os.Stdin).Decode(&traffic); err != nil {
		return fmt.Errorf("read the transfers: %w", err)
	}
	return traffic.Send(ctx)
}
