package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/bench/kit"
	status "longhaul/internal/carry/flow"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/tcpserver"
	"longhaul/lab/wan"
)

// The two WANs of the cases with several paths.
const (
	firstRTT  = 20 * time.Millisecond
	firstBps  = 100e6
	secondRTT = 80 * time.Millisecond
	secondBps = 50e6
	lossOf2nd = 0.005 // each way
	// Of one that is hardly worth it.
	crawlingRTT = 300 * time.Millisecond
	crawlingBps = 2e6
)

// The bounds of these cases.
const (
	pathsOfSum    = 0.90
	pathsOfBetter = 0.98
	pathsLost     = 10 * time.Second
	pathsBack     = 5 * time.Second
	pathsStall    = time.Second // longer than 4 round trips of either WAN
)

func firstWAN() lab.Conditions { return conditions(firstRTT, firstBps) }

func secondWAN(loss float64) lab.Conditions {
	c := conditions(secondRTT, secondBps)
	c.Loss = link.Loss{Probability: loss}
	c.LossBA = c.Loss
	return c
}

// overPaths is the setting of a near tunnel with these of the two paths.
func overPaths(first, second bool, more string) settings {
	var paths string
	if first {
		paths += fmt.Sprintf(", {from: %v}", lab.WANA)
	}
	if second {
		paths += fmt.Sprintf(", {from: %v, to: '%v:%d'%s}", lab.WANA2, lab.WANB2, port, more)
	}
	return settings{pair: ", paths: [" + paths[2:] + "]", tunnel: ", wan: {congestion_control: bbr}", wans: true}
}

// twoPaths measures one flow over either WAN and over both, then beside a second one that is
// hardly worth it.
func twoPaths(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	second := secondWAN(lossOf2nd)
	var rates [3]float64
	for i, over := range []struct {
		name          string
		first, second bool
	}{{"first WAN", true, false}, {"second WAN", false, true}, {"both", true, true}} {
		rate, err := rateOver(ctx, o, way, second, overPaths(over.first, over.second, ""), over.name)
		if err != nil {
			return fmt.Errorf("%s: %w", over.name, err)
		}
		rates[i] = rate
		note(kit.Measured{Name: over.name + ": last 4 s", Unit: "Mb/s", Value: rate})
	}
	better := max(rates[0], rates[1])
	note(kit.Measured{Name: "both ÷ sum of each alone", Value: rates[2] / (rates[0] + rates[1]), Bound: kit.AtLeast(pathsOfSum)})
	note(kit.Measured{Name: "both ÷ the better alone", Value: rates[2] / better, Bound: kit.AtLeast(pathsOfBetter)})
	slow := conditions(crawlingRTT, crawlingBps)
	rate, err := rateOver(ctx, o, way, slow, overPaths(true, true, ""), "slow second WAN")
	if err != nil {
		return fmt.Errorf("slow second WAN: %w", err)
	}
	note(kit.Measured{Name: "with a second one of 2 Mb/s, 300 ms: last 4 s", Unit: "Mb/s", Value: rate})
	note(kit.Measured{Name: "with a second one of 2 Mb/s ÷ the first alone", Value: rate / rates[0], Bound: kit.AtLeast(pathsOfBetter)})
	return nil
}

// rateOver is the rate of one flow in its last 4 s, in Mb/s.
func rateOver(ctx context.Context, o kit.Options, way string, second lab.Conditions, s settings, name string) (float64, error) {
	var received atomic.Int64
	w, err := buildWorld(ctx, o, lab.TwoWANs(firstWAN(), second), way, func(conn net.Conn) { countAll(conn, &received) }, s)
	if err != nil {
		return 0, err
	}
	defer w.close()
	f, err := w.stripe(ctx, &received, kit.Pick(o, 20*time.Second, 12*time.Second))
	if err != nil {
		return 0, err
	}
	paths, err := w.paths(ctx)
	for _, p := range paths {
		w.Report.Linef("  %s: path %s: %s, %d lanes, %.0f MB", name, p.Path, p.State(), p.Busy, float64(p.Sent)/1e6)
	}
	return f.last * 8 / 1e6, err
}

// paths are the near relay's.
func (w *world) paths(ctx context.Context) ([]status.Path, error) {
	now, err := w.near().Status(ctx)
	if err != nil || now.Pairs == nil || len(now.Pairs.Sessions) == 0 {
		return nil, err
	}
	return now.Pairs.Sessions[0].Paths, nil
}

// pathDies cuts one of two WANs under a bulk flow and under echoes, and mends it.
func pathDies(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	for _, cut := range []string{lab.WAN, lab.WAN2} {
		err := losesPath(ctx, o, way, overPaths(true, true, ""), cut, func(name string, m kit.Measured) {
			m.Name = name + " without " + cut
			note(m)
		})
		if err != nil {
			return fmt.Errorf("without %s: %w", cut, err)
		}
	}
	return nil
}

// standby cuts the ordinary WAN while another one stands by.
func standby(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	return losesPath(ctx, o, way, overPaths(true, true, ", standby: true"), lab.WAN, func(name string, m kit.Measured) {
		m.Name = name
		note(m)
	})
}

// losesPath measures how long flows stall when a WAN is lost, and how soon all is as before
// once it is back.
func losesPath(ctx context.Context, o kit.Options, way string, s settings, cut string, note func(string, kit.Measured)) error {
	var received atomic.Int64
	w, err := buildWorld(ctx, o, lab.TwoWANs(firstWAN(), secondWAN(0)), way, func(conn net.Conn) {
		var first [1]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil {
			return
		}
		if first[0] == askEcho {
			tcpserver.Echo(conn)
			return
		}
		countAll(conn, &received)
	}, s)
	if err != nil {
		return err
	}
	defer w.close()
	bulk, err := w.dial(ctx)
	if err != nil {
		return w.errorf("dial: %w", err)
	}
	if _, err := bulk.Write([]byte{0}); err != nil {
		return w.errorf("write: %w", err)
	}
	defer sendOn(bulk)()
	echoes, err := w.startEchoes(ctx)
	if err != nil {
		return err
	}
	defer echoes.stop()
	progress := watchProgress(&received)
	defer progress.stop()
	if err := kit.Pause(ctx, 8*time.Second); err != nil {
		return err
	}
	before := progress.rate(4 * time.Second)
	progress.reset()
	echoes.reset()
	beforePaths, err := w.paths(ctx)
	if err != nil {
		return err
	}
	if err := w.cutPath(cut, true); err != nil {
		return err
	}
	if err := kit.Pause(ctx, pathsLost); err != nil {
		return errors.Join(err, w.cutPath(cut, false))
	}
	during := progress.rate(4 * time.Second)
	stall, slowest := progress.longest(), echoes.slowest()
	if err := w.cutPath(cut, false); err != nil {
		return err
	}
	back := time.Now()
	progress.reset()
	echoes.reset()
	soon := 2 * pathsBack
	for time.Since(back) < 2*pathsBack {
		if err := kit.Pause(ctx, stripeTick); err != nil {
			return err
		}
		if progress.rate(time.Second) >= pathsOfSum*before && time.Since(back) > time.Second {
			soon = time.Since(back) - time.Second // the rate is that of the last second
			break
		}
	}
	if err := kit.Pause(ctx, 2*time.Second); err != nil {
		return err
	}
	paths, err := w.paths(ctx)
	if err != nil {
		return err
	}
	for i, p := range paths {
		w.Report.Linef("  path %s: %s, %d lanes, %.0f MB before, %.0f MB at the end", p.Path, p.State(), p.Busy, float64(beforePaths[i].Sent)/1e6, float64(p.Sent)/1e6)
	}
	for _, line := range w.heard("path") {
		w.Report.Linef("  %s", line)
	}
	note("rate before", kit.Measured{Unit: "Mb/s", Value: before * 8 / 1e6})
	note("rate", kit.Measured{Unit: "Mb/s", Value: during * 8 / 1e6})
	note("bulk flow: longest stall", kit.Measured{Unit: "s", Value: stall.Seconds(), Bound: kit.AtMost(pathsStall.Seconds()), Exact: true})
	note("echoes: slowest", kit.Measured{Unit: "s", Value: slowest.Seconds(), Bound: kit.AtMost(pathsStall.Seconds()), Exact: true})
	note("90 % of the rate before, after its return", kit.Measured{Unit: "s", Value: soon.Seconds(), Bound: kit.AtMost(pathsBack.Seconds()), Exact: true})
	note("bulk flow: longest stall on its return", kit.Measured{Unit: "s", Value: progress.longest().Seconds(), Bound: kit.AtMost(pathsStall.Seconds()), Exact: true})
	note("flows that broke", kit.Measured{Value: float64(echoes.broken() + btoi(progress.longest() > pathsBack)), Bound: kit.AtMost(0), Exact: true})
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// cutPath cuts one of the WANs, or mends it.
func (w *world) cutPath(link string, down bool) error {
	w.Report.Linef("  %s: %s is %s", time.Now().Format(clock), link, map[bool]string{true: "cut", false: "mended"}[down])
	return w.pathOver(link).Cut(down, wan.BothWays...)
}

// askEcho asks the target of losesPath for the bytes back.
const askEcho = 1

// echoFlow sends small messages and waits for each.
type echoFlow struct {
	conn *net.TCPConn
	done sync.WaitGroup

	mu     sync.Mutex
	sentAt time.Time // of the one that is under way
	worst  time.Duration
	err    error
	ended  bool
}

func (w *world) startEchoes(ctx context.Context) (*echoFlow, error) {
	conn, err := w.dial(ctx)
	if err != nil {
		return nil, w.errorf("dial: %w", err)
	}
	e := &echoFlow{conn: conn}
	if _, err := conn.Write([]byte{askEcho}); err != nil {
		conn.Close()
		return nil, w.errorf("write: %w", err)
	}
	e.done.Go(e.run)
	return e, nil
}

func (e *echoFlow) run() {
	message, answer := make([]byte, 64), make([]byte, 64)
	for n := byte(0); ; n++ {
		message[0] = n
		e.mu.Lock()
		e.sentAt = time.Now()
		e.mu.Unlock()
		_, err := e.conn.Write(message)
		if err == nil {
			_, err = io.ReadFull(e.conn, answer)
		}
		if err == nil && answer[0] != n {
			err = errors.New("another message came back")
		}
		e.mu.Lock()
		e.worst = max(e.worst, time.Since(e.sentAt))
		ended := e.ended
		if !ended {
			e.err = err
		}
		e.mu.Unlock()
		if err != nil || ended {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (e *echoFlow) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.worst = 0
}

func (e *echoFlow) slowest() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return max(e.worst, time.Since(e.sentAt))
}

func (e *echoFlow) broken() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return btoi(e.err != nil)
}

func (e *echoFlow) stop() {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.conn.Close()
	e.done.Wait()
}

// growth watches how a number of bytes grows.
type growth struct {
	of   *atomic.Int64
	quit chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	seen    []arrival // in ticks of progressTick
	began   time.Time
	moved   time.Time
	stalled time.Duration
}

const progressTick = 20 * time.Millisecond

func watchProgress(of *atomic.Int64) *growth {
	p := &growth{of: of, quit: make(chan struct{}), began: time.Now(), moved: time.Now()}
	p.done.Go(p.run)
	return p
}

func (p *growth) run() {
	ticker := time.NewTicker(progressTick)
	defer ticker.Stop()
	for last := int64(-1); ; {
		select {
		case <-p.quit:
			return
		case <-ticker.C:
		}
		now, total := time.Now(), p.of.Load()
		p.mu.Lock()
		p.seen = append(p.seen, arrival{now.Sub(p.began), total})
		if total != last {
			p.stalled = max(p.stalled, now.Sub(p.moved))
			p.moved, last = now, total
		}
		p.mu.Unlock()
	}
}

// all is what was seen since it began.
func (p *growth) all() []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// rate is the bytes a second of the time just past.
func (p *growth) rate(span time.Duration) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return striped{arrived: p.seen}.rateOfLast(span)
}

// longest is the longest time without a byte since reset.
func (p *growth) longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.stalled, time.Since(p.moved))
}

func (p *growth) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled, p.moved = 0, time.Now()
}

func (p *growth) stop() {
	close(p.quit)
	p.done.Wait()
}
