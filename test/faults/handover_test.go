package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"longhaul/internal/carry/handover"
	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/run/control"
	"longhaul/test/nettest"
)

// withholding begins the name of a link to this test's program. Started by it as the successor of a
// relay, the program hands on to a real successor, but for the item that the rest of the name says.
const withholding = "withholds-"

// handedOver are the items of a handover's state. A new one needs a row of TestHandover. The last six
// have none yet: TestNameMemory of package relay holds what takes the names, TestEventsGoOn what takes the
// states, TestCase67InterceptingRelayIsUpgraded upgrades an intercepting relay with all others, and the spec
// pair_trust a relay with trusted peers.
var handedOver = []string{"control_socket", "elders", "drained", "hops", "pairs", "links", "names", "intercepted", "dialers", "cleared", "states", "trusted_list"}

// withhold is the program of such a link.
func withhold(item string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := handover.Receive(ctx)
	if err != nil {
		return err
	}
	var state map[string]json.RawMessage
	if err := json.Unmarshal(p.State, &state); err != nil {
		return err
	}
	for name := range state {
		if !slices.Contains(handedOver, name) {
			return fmt.Errorf("no test knows the item %q", name)
		}
	}
	if _, has := state[item]; !has && item != "nothing" {
		return fmt.Errorf("no item %q is handed over", item)
	}
	delete(state, item)
	offer := handover.Offer{Sockets: p.Sockets}
	if offer.State, err = json.Marshal(state); err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(os.Args[0]), "longhaul")
	s, err := handover.Start(ctx, handover.Program{Path: program, Args: append([]string{program}, os.Args[1:]...), Env: os.Environ(), Log: p.Log}, offer, os.Stderr)
	if err != nil {
		return err
	}
	about, err := s.Ready(ctx)
	if err != nil {
		return err
	}
	return errors.Join(p.Ready(ctx, about), s.Serve(ctx), p.Serving(ctx), s.Leave(ctx))
}

// upgradeWithout upgrades a relay, and withholds an item from its successor.
func (d *daemon) upgradeWithout(item string) error {
	d.t.Helper()
	dir := d.t.TempDir()
	program := filepath.Join(dir, withholding+item)
	self, err := os.Executable()
	nettest.Must(d.t, err)
	nettest.Must(d.t, os.Symlink(self, program))
	nettest.Must(d.t, os.Symlink(nettest.Longhaul(d.t), filepath.Join(dir, "longhaul")))
	_, err = d.upgrade(program)
	return err
}

// TestHandover holds for each item of what an upgrade hands over that something works with it, and does
// not without it.
func TestHandover(t *testing.T) {
	t.Parallel()
	plain := func(t *testing.T, forward string) (d *daemon, dial dialFunc) {
		listen := nettest.FreeAddress(t, "127.0.0.1")
		d = startDaemon(t, nil, unsupervised, fmt.Sprintf("control_socket: SOCKET\ntunnels:\n  - {name: main, listen: %q, forward: %s}\n", listen, forward))
		return d, dialAsEthernet(listen)
	}
	says := func(d *daemon, text string) bool {
		output, _ := command(d.t, "status", "--control-socket", d.socket())
		return strings.Contains(output, text)
	}
	drain := func(d *daemon, what string) {
		if output, status := command(d.t, "drain", what, "--control-socket", d.socket()); status != 0 {
			d.t.Fatal(output)
		}
	}
	for item, works := range map[string]func(t *testing.T, upgrade func(*daemon) error) bool{
		"control_socket": func(t *testing.T, upgrade func(*daemon) error) bool {
			d, _ := plain(t, echo(t, nettest.FreeAddress(t, "127.0.0.1")))
			old := d.cmd.Process.Pid
			if err := upgrade(d); err != nil {
				return false // another relay seems to use it
			}
			var s daemonStatus
			body, err := control.Status(t.Context(), d.socket())
			return err == nil && json.Unmarshal(body, &s) == nil && s.PID != old
		},
		"elders": func(t *testing.T, upgrade func(*daemon) error) bool {
			d, dial := plain(t, echo(t, nettest.FreeAddress(t, "127.0.0.1")))
			hold(t, dial)
			nettest.Must(t, upgrade(d))
			return len(d.status().Older) == 1
		},
		"drained": func(t *testing.T, upgrade func(*daemon) error) bool {
			d, _ := plain(t, echo(t, nettest.FreeAddress(t, "127.0.0.1")))
			drain(d, "main")
			nettest.Must(t, upgrade(d))
			return says(d, "drained")
		},
		"hops": func(t *testing.T, upgrade func(*daemon) error) bool {
			one, other := echo(t, nettest.FreeAddress(t, "127.0.0.1")), echo(t, nettest.FreeAddress(t, "127.0.0.1"))
			d, _ := plain(t, fmt.Sprintf("[%q, %q]", one, other))
			drain(d, one)
			nettest.Must(t, upgrade(d))
			return says(d, "drained")
		},
		"pairs": func(t *testing.T, upgrade func(*daemon) error) bool {
			p, m := loopbackPair(t)
			p.target = echo(t, p.target)
			p.start()
			h := hold(t, p.dial())
			nettest.Must(t, upgrade(p.far))
			m.reset(preface.Lane)
			m.reset(preface.Control)
			return h.ping(patience) == nil
		},
		"links": func(t *testing.T, upgrade func(*daemon) error) bool {
			p, m := loopbackPair(t)
			p.settings = "    connect_timeout: 1s\n"
			p.target = echo(t, p.target)
			p.start()
			mend := m.cut()
			nettest.Eventually(t, patience, func() bool { return !p.near.session().Up }, func() string { return "nobody sees the outage" })
			nettest.Must(t, upgrade(p.near))
			opened := begin(t, p.dial())
			select {
			case <-opened:
				return false
			case <-time.After(3 * time.Second): // the fault, not a condition
			}
			mend()
			return <-opened == nil
		},
	} {
		for _, without := range []string{"nothing", item} {
			t.Run(item+" without "+without, func(t *testing.T) {
				t.Parallel()
				if worked := works(t, func(d *daemon) error { return d.upgradeWithout(without) }); worked != (without == "nothing") {
					t.Errorf("works: %v", worked)
				}
			})
		}
	}
}
