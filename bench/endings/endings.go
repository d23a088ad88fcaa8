// Command endings runs the same six ways for a connection to end against longhaul and other
// relays over loopback, and prints which of them reach the other side as what they were.
package main

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/bench/kit"
	"longhaul/bench/peers"
	"longhaul/lab/experiment"
	"longhaul/test/tcpscript"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == peers.CopyLoopCommand {
		if err := peers.CopyLoop(context.Background(), os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "endings:", err)
			os.Exit(1)
		}
		return
	}
	kit.Main(suite(3 * time.Second).Entry())
}

//go:embed sequences/*.tcp
var sequences embed.FS

// relays are the relays compared, longhaul first.
func relays(program string) []peers.Relay {
	return []peers.Relay{
		peers.Longhaul(program),
		peers.HAProxy, peers.HAProxyNolinger,
		peers.Nginx, peers.NginxHalfClose,
		peers.Socat, peers.SocatT,
		peers.GoCopyLoop,
	}
}

// suite has a case for each sequence, whose steps wait for what they expect no longer than
// within.
func suite(within time.Duration) kit.Suite {
	s := kit.Suite{Usual: kit.Options{Repeat: 20}, Missing: missing, Bounded: func(way string) bool { return way == "longhaul" },
		Experiment: experiment.Experiment{
			Name:    "endings",
			Summary: "six ways for a connection to end, through longhaul and other relays",
			Source:  "no report: each side's script says what the other one must see",
			Short:   "Six ways for a connection to end, through longhaul and other relays",
			Long: `endings runs scripts of both ends of a connection through relays on loopback. An
ending is right if the side that is left sees what happened to the other: an end
for an end, a reset for everything else, and before it every byte that had
arrived at the relay. The table counts the runs that were wrong. A relay that
this host lacks is skipped.

Exit codes: 0 longhaul got every ending right, 1 it did not.`,
			Example: `  go run ./bench/endings
  go run ./bench/endings --through longhaul,haproxy --case relay-killed --repeat 5`,
		}}
	var ways []string
	for _, r := range relays("") {
		ways = append(ways, r.Name)
	}
	files, err := sequences.ReadDir("sequences")
	for _, f := range files {
		text, readErr := sequences.ReadFile("sequences/" + f.Name())
		script, parseErr := tcpscript.Parse(string(text))
		if err = errors.Join(err, readErr, parseErr); err != nil {
			break
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		s.Trials = append(s.Trials, kit.Trial{Name: strings.ReplaceAll(title, " ", "-"), About: title, Ways: ways,
			All: func(ctx context.Context, o kit.Options, _ int, note func(string, kit.Measured)) error {
				return runAll(ctx, o, script, within, note)
			}})
	}
	if err != nil {
		panic(err) // the files are part of the program
	}
	return s
}

// missing says why a relay cannot run here.
func missing(way string) string {
	if way == "longhaul" {
		return ""
	}
	for _, r := range relays("") {
		if r.Name != way {
			continue
		}
		if _, err := r.Prepare(context.Background(), os.TempDir()); errors.Is(err, peers.ErrMissing) {
			return err.Error()
		}
	}
	return ""
}

// runAll runs a script once against each relay, the relays side by side: they mostly wait.
func runAll(ctx context.Context, o kit.Options, script tcpscript.Script, within time.Duration, note func(string, kit.Measured)) error {
	all := slices.DeleteFunc(relays(o.Program), func(r peers.Relay) bool { return !slices.Contains(o.Through, r.Name) })
	wrong, errs := make([]string, len(all)), make([]error, len(all))
	var running sync.WaitGroup
	for i, r := range all {
		running.Go(func() {
			runtime.LockOSThread() // which peers.Start asks for
			defer runtime.UnlockOSThread()
			if wrong[i], errs[i] = runOne(ctx, r, i, script, within); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", r.Name, errs[i])
			}
		})
	}
	running.Wait()
	for i, r := range all {
		m := kit.Measured{Name: "wrong", Bound: kit.AtMost(0), Exact: true, Example: wrong[i]}
		if wrong[i] != "" {
			m.Value = 1
		}
		note(r.Name, m)
	}
	return errors.Join(errs...)
}

// runOne runs a script against one relay, the number-th. It returns what a side saw that it
// must not see.
func runOne(ctx context.Context, r peers.Relay, number int, script tcpscript.Script, within time.Duration) (wrong string, err error) {
	dir, err := os.MkdirTemp("", "longhaul-endings-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // nginx's worker is another user
		return "", err
	}
	program, err := r.Prepare(ctx, dir)
	if err != nil {
		return "", err
	}
	listen, err := peers.FreeAddress(ctx, fmt.Sprintf("127.77.%d.1", number))
	if err != nil {
		return "", err
	}
	target, err := peers.FreeAddress(ctx, fmt.Sprintf("127.77.%d.2", number))
	if err != nil {
		return "", err
	}
	argv, err := program.Command(filepath.Clean(dir), peers.Setup{Listen: listen, Target: target})
	if err != nil {
		return "", err
	}
	relay, err := peers.Start(ctx, argv, listen)
	if err != nil {
		return "", err
	}
	kill := sync.OnceValue(relay.Kill)
	defer kill()
	peers.Forking.RLock()
	err = script.Run(ctx, tcpscript.Env{
		Dial: tcpscript.DialTo(listen.String()), Listen: tcpscript.ListenOn(target.String()),
		Do: map[string]func() error{"kill-relay": kill}, Within: within,
	})
	peers.Forking.RUnlock()
	var f *tcpscript.Failure
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case !errors.As(err, &f):
		return "", err
	}
	wrong = cmp.Or(strings.TrimSpace(f.Actor+" "+f.Got), "wrong")
	if f.Bytes > 0 {
		wrong += fmt.Sprintf(" after %d bytes", f.Bytes)
	}
	return wrong, nil
}
