package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/bench/peers"
	"longhaul/test/tcpscript"
)

//go:embed sequences/*.tcp
var sequenceFiles embed.FS

// sequence is one way for a connection to end.
type sequence struct {
	name   string // the file's first line
	script tcpscript.Script
}

func sequences() ([]sequence, error) {
	entries, err := sequenceFiles.ReadDir("sequences")
	if err != nil {
		return nil, err
	}
	var list []sequence
	for _, entry := range entries {
		text, err := sequenceFiles.ReadFile("sequences/" + entry.Name())
		if err != nil {
			return nil, err
		}
		first, _, _ := strings.Cut(string(text), "\n")
		script, err := tcpscript.Parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		list = append(list, sequence{strings.TrimPrefix(first, "# "), script})
	}
	return list, nil
}

// measure runs every sequence against every relay, the relays side by side:
// they mostly wait. A step waits for what it expects no longer than within. What is not installed is skipped with a line on stderr.
func measure(ctx context.Context, relays []peers.Relay, list []sequence, repeat int, within time.Duration, dir string, stderr io.Writer) (result, error) {
	res := result{Kernel: peers.KernelVersion(), Repeat: repeat}
	for _, s := range list {
		res.Sequences = append(res.Sequences, s.name)
	}
	programs := make([]peers.Program, len(relays))
	for i, r := range relays {
		own := filepath.Join(dir, r.Name)
		if err := os.Mkdir(own, 0o755); err != nil {
			return result{}, err
		}
		var err error
		programs[i], err = r.Prepare(ctx, own)
		if errors.Is(err, peers.ErrMissing) {
			fmt.Fprintf(stderr, "endings: %s is skipped: %v\n", r.Name, err)
			continue
		}
		if err != nil {
			return result{}, fmt.Errorf("%s: %w", r.Name, err)
		}
	}

	res.Relays = make([]relayResult, len(relays))
	errs := make([]error, len(relays))
	var all sync.WaitGroup
	for i, r := range relays {
		p := programs[i]
		if p.Command == nil {
			continue
		}
		all.Go(func() {
			runtime.LockOSThread() // which start asks for
			defer runtime.UnlockOSThread()
			res.Relays[i] = relayResult{Name: r.Name, Version: p.Version, Note: r.Note}
			res.Relays[i].Endings, errs[i] = measureRelay(ctx, p, filepath.Join(dir, r.Name), i, list, repeat, within)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", r.Name, errs[i])
			}
		})
	}
	all.Wait()
	res.Relays = slices.DeleteFunc(res.Relays, func(r relayResult) bool { return r.Name == "" })
	return res, errors.Join(errs...)
}

// measureRelay runs every sequence against one relay, the number-th.
func measureRelay(ctx context.Context, p peers.Program, dir string, number int, list []sequence, repeat int, within time.Duration) ([]ending, error) {
	listen, err := peers.FreeAddress(ctx, fmt.Sprintf("127.77.%d.1", number))
	if err != nil {
		return nil, err
	}
	target, err := peers.FreeAddress(ctx, fmt.Sprintf("127.77.%d.2", number))
	if err != nil {
		return nil, err
	}
	argv, err := p.Command(dir, peers.Setup{Listen: listen, Target: target})
	if err != nil {
		return nil, err
	}
	var running *peers.Process
	stop := func() error {
		r := running
		running = nil
		return r.Kill()
	}
	defer func() {
		if running != nil {
			stop()
		}
	}()
	env := tcpscript.Env{
		Dial:   tcpscript.DialTo(listen.String()),
		Listen: tcpscript.ListenOn(target.String()),
		Do:     map[string]func() error{"kill-relay": stop},
		Within: within,
	}
	var endings []ending
	for _, s := range list {
		e := ending{Sequence: s.name}
		for range repeat {
			if running == nil {
				if running, err = peers.Start(ctx, argv, listen); err != nil {
					return nil, err
				}
			}
			peers.Forking.RLock()
			err := s.script.Run(ctx, env)
			peers.Forking.RUnlock()
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if running != nil && running.Gone() {
				return nil, fmt.Errorf("it ended by itself: %v", running)
			}
			var f *tcpscript.Failure
			switch {
			case err == nil:
				e.OK++
			case errors.As(err, &f):
				e.add(f)
			default:
				return nil, err
			}
		}
		endings = append(endings, e)
	}
	return endings, nil
}
