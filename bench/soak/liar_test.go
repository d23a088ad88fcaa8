package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"longhaul/bench/peers"
	"longhaul/internal/run/control"
	"longhaul/lab/relays"
	"longhaul/test/nettest"
)

// TestMixedFindsLies runs the mixed run over two copy loops, which turn a
// reset into an end: it must say so.
func TestMixedFindsLies(t *testing.T) {
	nettest.RequireSandbox(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := options(PartMixed)
	o.Program, o.Seed, o.Time = self, 5, 2*time.Second
	for _, k := range eventKinds { // no death excuses a lie, and a liar cannot be upgraded
		if k.kind != reloadEvent {
			o.without = append(o.without, k.kind)
		}
	}
	shorten(t)
	lateTarget = time.Second // such flows count as violations, which are what is looked for
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	found := map[ending]bool{}
	for _, e := range r.Mixed.Endings {
		found[e.Ending] = e.Violations > 0
	}
	for _, e := range []ending{clientResets, targetResets, targetRefuses} {
		if !found[e] {
			t.Errorf("no violation in flows of the ending %q", e)
		}
	}
	if !slices.ContainsFunc(r.Mixed.Violations, func(v string) bool { return strings.Contains(v, "saw a clean end after") }) {
		t.Errorf("no clean end is complained of: %q", r.Mixed.Violations)
	}
}

var (
	configTunnel = regexp.MustCompile(`name: (?:main|refused), listen: ([^,}]+), forward: \[?([^,}\]]+)`)
	configSocket = regexp.MustCompile(`control_socket: (\S+)`)
)

// lie is a relay of two copy loops that takes longhaul's command line and
// configuration as far as the soak needs it.
func lie(config string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	reload := make(chan os.Signal, 4)
	signal.Notify(reload, syscall.SIGHUP)
	socket, err := control.Listen(ctx, configSocket.FindStringSubmatch(string(text))[1])
	if err != nil {
		return err
	}
	defer control.Serve(socket, slog.New(slog.DiscardHandler), control.Handlers{Status: func() any { return relays.Status{} }}).Close()
	failed := make(chan error)
	for _, tunnel := range configTunnel.FindAllStringSubmatch(string(text), -1) {
		go func() { failed <- peers.CopyLoop(ctx, tunnel[1], tunnel[2]) }()
	}
	fmt.Fprintln(os.Stderr, "relay started")
	for {
		select {
		case <-reload:
			fmt.Fprintln(os.Stderr, "msg=reloaded")
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}
