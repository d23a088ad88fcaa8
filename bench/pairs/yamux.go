package main

import (
	"context"

	"longhaul/lab"
)

// yamuxTunnel is the program of bench/yamux, a module of its own.
const yamuxTunnel = "yamuxtunnel"

func missingYamux() string {
	if lab.FindProgram(yamuxTunnel) == "" {
		return "needs " + yamuxTunnel + " in PATH (go -C bench/yamux build -o DIR/" + yamuxTunnel + ")"
	}
	return ""
}

// startYamux starts the tunnel's two ends in place of relays.
func (w *world) startYamux(ctx context.Context) error {
	for _, end := range []struct{ host, role, listen, forward string }{
		{"relay-b", "far", addressFar, addressTo},
		{"relay-a", "near", addressNear, addressFar},
	} {
		if _, err := w.Start(ctx, end.host, port, lab.FindProgram(yamuxTunnel), end.role, end.listen, end.forward); err != nil {
			return err
		}
	}
	return nil
}
