package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"longhaul/internal/run/control"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// confirm gives the relay a configuration that must be confirmed.
func (d *daemon) confirm(ctx context.Context, config, within string) error {
	d.t.Helper()
	d.write(config)
	body, err := control.Do(ctx, d.socket(), "reload-confirm", url.Values{"within": {within}})
	if err != nil {
		return err
	}
	var r struct {
		OK    bool
		Error string
	}
	if err := json.Unmarshal(body, &r); err != nil || r.OK {
		return err
	}
	return fmt.Errorf("the reload failed: %s", r.Error)
}

// unconfirmedFiles are what a next process would go back to.
func (d *daemon) unconfirmedFiles() []string {
	d.t.Helper()
	all, err := filepath.Glob(filepath.Join(d.dir, "unconfirmed-*.json"))
	nettest.Must(d.t, err)
	return all
}

// wrongConfigurations are of a relay between listen and target: each lets no new client through.
func wrongConfigurations(t *testing.T, listen, target string) (right string, wrong map[string]string) {
	text := func(listen, forward, more string) string {
		return fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - {name: a, listen: %q, forward: %q%s}\n", listen, forward, more)
	}
	return text(listen, target, ""), map[string]string{
		"forward":  text(listen, nettest.FreeAddress(t, "127.0.0.1"), ""),
		"allow":    text(listen, target, ", allow: 192.0.2.0/24"),
		"listener": text(nettest.FreeAddress(t, "127.0.0.1"), target, ""),
	}
}

func TestCase131WrongConfigurationIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"forward", "allow", "listener"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			listen, target := nettest.FreeAddress(t, "127.0.0.1"), echo(t, "127.0.0.1:0")
			dial := tcpscript.DialTo(listen)
			right, wrong := wrongConfigurations(t, listen, target)
			relay := startDaemon(t, nil, stateful, right)
			flows := openTraffic(t, dial, 8)
			nettest.Must(t, relay.confirm(t.Context(), wrong[what], "1h"))
			if h, err := tryHold(t.Context(), dial, patience); err == nil {
				h.Close()
				t.Error("the wrong configuration serves new clients")
			}
			nettest.Must(t, relay.confirm(t.Context(), wrong[what], "1s")) // goes back to the right one, as the first
			relay.expectLog(`msg="rolled back: `)
			fresh := openTraffic(t, dial, 8)
			if n := len(relay.unconfirmedFiles()); n != 1 {
				t.Errorf("%d files for a next process", n)
			}
			relay.reload(right)
			if n := len(relay.unconfirmedFiles()); n != 0 {
				t.Errorf("%d files for a next process after a reload", n)
			}
			flows.release(t)
			fresh.release(t)
		})
	}
}

// TestCase132KilledWhileUnconfirmed kills the relay at random moments while it puts an unconfirmed
// configuration into force, and after it has.
func TestCase132KilledWhileUnconfirmed(t *testing.T) {
	t.Parallel()
	const rounds = 20
	listen, target := nettest.FreeAddress(t, "127.0.0.1"), echo(t, "127.0.0.1:0")
	dial := tcpscript.DialTo(listen)
	right, wrong := wrongConfigurations(t, listen, target)
	relay := startDaemon(t, nil, stateful, right)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 132))
	rolledBack := 0
	for round := range rounds {
		answered := make(chan error, 1)
		config := wrong[[]string{"forward", "allow", "listener"}[round%3]]
		go func() { answered <- relay.confirm(t.Context(), config, "1h") }()
		// Nothing here waits for a time: how far the relay is after some looks at the disk is chance.
		looks, seen := random.IntN(60), false
		for n := 0; len(answered) == 0 && (n < looks || round%2 == 1 && !seen); n++ {
			seen = len(relay.unconfirmedFiles()) > 0
		}
		if round%5 == 4 {
			nettest.Must(t, <-answered)
			answered <- nil
		}
		relay.signal(syscall.SIGKILL)
		<-relay.exited
		err := <-answered
		begun := len(relay.unconfirmedFiles()) > 0
		if err == nil && !begun {
			t.Errorf("round %d: a reload succeeded, and a next process would not go back", round)
		}
		if !begun { // the relay had not begun, and the next one has the wrong file
			relay.write(right)
		}
		text, readErr := os.ReadFile(relay.file())
		nettest.Must(t, readErr)
		relay = launchDaemon(t, nil, stateful, relay.dir, string(text))
		hold(t, dial).release(t)
		if begun {
			rolledBack++
			relay.expectLog(`msg="rolled back: `)
			if !strings.Contains(relay.log.String(), "correct the files, then longhaul reload --confirm again") {
				t.Errorf("round %d: no remedy in\n%s", round, relay.log)
			}
			relay.reload(right)
		}
		if n := len(relay.unconfirmedFiles()); n != 0 {
			t.Errorf("round %d: %d files for a next process after a reload", round, n)
		}
	}
	t.Logf("%d of %d rounds went back", rolledBack, rounds)
	if rolledBack < rounds/2 { // each second one waits for the file
		t.Errorf("only %d of %d rounds went back", rolledBack, rounds)
	}
}
