package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	"longhaul/docs"
	"longhaul/lab"
)

// The path of flows that are compressed.
const (
	slowRTT     = 40 * time.Millisecond
	slowRateBps = 20e6
)

// The bounds of compression.
const (
	textGain   = 2.5  // of the goodput of text
	randomLoss = 0.97 // of that of bytes that do not shrink
)

// cargo is what a flow sends, again and again.
type cargo struct {
	name  string
	bytes []byte
}

// cargoes are text, which is this program's manual, and bytes that do not shrink. Both are
// longer than what a compressor looks back for.
func cargoes() ([]cargo, error) {
	var text []byte
	err := fs.WalkDir(docs.Pages, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		page, err := docs.Pages.ReadFile(path)
		text = append(text, page...)
		return err
	})
	random := make([]byte, 1<<20-3)
	source := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(source.Uint32())
	}
	return []cargo{{"text", text}, {"random bytes", random}}, err
}

// compressed measures flows of either kind with and without compress: auto.
func compressed(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	all, err := cargoes()
	if err != nil {
		return err
	}
	for _, c := range all {
		var plain float64
		for _, setting := range []string{"off", "auto"} {
			rate, cpuPerGB, err := c.carry(ctx, o, way, setting)
			if err != nil {
				return fmt.Errorf("%s, compress: %s: %w", c.name, setting, err)
			}
			name := c.name + ", compress: " + setting
			note(kit.Measured{Name: name, Unit: "Mb/s", Value: rate / 1e6})
			note(kit.Measured{Name: name + ": CPU of both sites", Unit: "s/GB", Value: cpuPerGB})
			if setting == "off" {
				plain = rate
				continue
			}
			bound := kit.AtLeast(textGain)
			if c.name != all[0].name {
				bound = kit.AtLeast(randomLoss)
			}
			note(kit.Measured{Name: c.name + ": auto ÷ off", Value: rate / plain, Bound: bound})
		}
	}
	return nil
}

// carry sends for a while, and returns the rate in bit/s after the first seconds. The target
// compares every byte.
func (c cargo) carry(ctx context.Context, o kit.Options, way, setting string) (rateBps, cpuPerGB float64, err error) {
	var received atomic.Int64
	w, err := buildWorld(ctx, o, lab.TwoSites(conditions(slowRTT, slowRateBps)), way, func(conn net.Conn) { c.count(conn, &received) },
		settings{pair: ", compress: " + setting})
	if err != nil {
		return 0, 0, err
	}
	defer w.close()
	conn, err := w.dial(ctx)
	if err != nil {
		return 0, 0, w.errorf("dial: %w", err)
	}
	sent := make(chan error, 1)
	go func() { sent <- c.send(conn) }()
	defer func() {
		_ = conn.SetLinger(0)
		conn.Close()
		<-sent
	}()
	if err := kit.Pause(ctx, 3*time.Second); err != nil { // start-up
		return 0, 0, err
	}
	before, err := cpuTime(w.pids())
	if err != nil {
		return 0, 0, err
	}
	from, began := received.Load(), time.Now()
	if err := kit.Pause(ctx, kit.Pick(o, 20*time.Second, 8*time.Second)); err != nil {
		return 0, 0, err
	}
	n, took := float64(received.Load()-from), time.Since(began)
	after, err := cpuTime(w.pids())
	if err == nil && n == 0 {
		err = w.errorf("nothing that was sent arrives: %w", errWrong)
	}
	return n * 8 / took.Seconds(), (after - before).Seconds() * 1e9 / n, err
}

func (c cargo) send(conn net.Conn) error {
	for {
		if err := write(conn, c.bytes); err != nil {
			return err
		}
	}
}

// count counts bytes that are the cargo's.
func (c cargo) count(conn net.Conn, received *atomic.Int64) {
	buffer := make([]byte, 256<<10)
	for at := 0; ; {
		n, err := conn.Read(buffer[:min(len(buffer), len(c.bytes)-at)])
		if err != nil || !bytes.Equal(buffer[:n], c.bytes[at:at+n]) {
			return
		}
		at = (at + n) % len(c.bytes)
		received.Add(int64(n))
	}
}
