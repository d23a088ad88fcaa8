package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"longhaul/lab"
	"longhaul/lab/pattern"
)

// bin is the length of the goodput's time bins.
const bin = 100 * time.Millisecond

// Dip is the fall of the bulk flows' goodput below its usual level.
type Dip struct {
	// LongestSeconds is the longest run of 100 ms bins below nine tenths of the
	// usual goodput.
	LongestSeconds float64 `json:"longest_seconds"`
	DepthShare     float64 `json:"depth_share"`        // of the deepest bin: 0.2 is a fifth below
	SecondShare    float64 `json:"second_depth_share"` // of the deepest second
}

// worst returns the worse of both in each figure.
func (d Dip) worst(o Dip) Dip {
	return Dip{max(d.LongestSeconds, o.LongestSeconds), max(d.DepthShare, o.DepthShare), max(d.SecondShare, o.SecondShare)}
}

// A goodput of at least enough of the usual is no dip.
const enough = 0.9

// dipOf returns the dip of successive bins.
func dipOf(bins []int64, usual float64) Dip {
	var d Dip
	below := 0
	second := int(time.Second / bin)
	for i, bytes := range bins {
		share := float64(bytes) / usual
		d.DepthShare = max(d.DepthShare, 1-share)
		if share < enough {
			below++
		} else {
			below = 0
		}
		d.LongestSeconds = max(d.LongestSeconds, (time.Duration(below) * bin).Seconds())
		if i+1 >= second {
			sum := int64(0)
			for _, b := range bins[i+1-second : i+1] {
				sum += b
			}
			d.SecondShare = max(d.SecondShare, 1-float64(sum)/usual/float64(second))
		}
	}
	return d
}

// bulk is flows that send at full speed, and their arrived bytes over time.
type bulk struct {
	wg    sync.WaitGroup
	flows []*bulkFlow

	start time.Time
	mu    sync.Mutex
	bins  []int64
}

type bulkFlow struct {
	began time.Time
	err   error
}

func (b *bulk) wait() { b.wg.Wait() }

// arrived counts bytes that arrive now.
func (b *bulk) arrived(n int64) {
	at := int(time.Since(b.start) / bin)
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.bins) <= at {
		b.bins = append(b.bins, 0)
	}
	b.bins[at] += n
}

// between returns the complete bins of a time span.
func (b *bulk) between(from, to time.Time) []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := int((from.Sub(b.start) + bin - 1) / bin)
	last := min(int(to.Sub(b.start)/bin), len(b.bins))
	if first >= last {
		return nil
	}
	return slices.Clone(b.bins[first:last])
}

// measure compares the goodput after each upgrade with pieces of the same length
// before the first.
func (r *Result) measure(b *bulk, quiet time.Time, upgrades []time.Time, end time.Time, every time.Duration) {
	if len(upgrades) == 0 {
		return
	}
	before := b.between(quiet, upgrades[0])
	if len(before) == 0 {
		return
	}
	sorted := slices.Sorted(slices.Values(before))
	usual := float64(sorted[len(sorted)/2])
	if usual == 0 {
		return
	}
	goodput, quietDip, worst := usual*8/bin.Seconds(), Dip{}, Dip{}
	for at := quiet; at.Before(upgrades[0]); at = at.Add(every) {
		until := at.Add(every)
		if until.After(upgrades[0]) {
			until = upgrades[0]
		}
		quietDip = quietDip.worst(dipOf(b.between(at, until), usual))
	}
	r.GoodputBps, r.Quiet, r.Worst = &goodput, &quietDip, &worst
	for i, at := range upgrades {
		until := end
		if i+1 < len(upgrades) {
			until = upgrades[i+1]
		}
		dip := dipOf(b.between(at, until), usual)
		r.Upgrades[i].Dip, worst = &dip, worst.worst(dip)
	}
}

const chunkBytes = 256 << 10

// startBulk starts n flows that send until ctx ends, and then end cleanly.
func (w *world) startBulk(ctx context.Context, n int) *bulk {
	b := w.bulk
	b.start = time.Now()
	for range n {
		f := &bulkFlow{began: time.Now()}
		b.flows = append(b.flows, f)
		b.wg.Go(func() { f.err = w.send(ctx) })
	}
	return b
}

// send sends the pattern until ctx ends. The sink then reports the number of correct
// bytes.
func (w *world) send(ctx context.Context) error {
	conn, err := w.dial(netip.AddrPortFrom(lab.RelayA, bulkPort))
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := int64(0)
	for ctx.Err() == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(patience))
		n, err := conn.Write(pattern.At(sent, chunkBytes))
		sent += int64(n)
		if err != nil {
			return err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	report, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if len(report) != 8 || binary.BigEndian.Uint64(report) != uint64(sent) {
		return fmt.Errorf("%d bytes were sent; the sink's report is %x: %w", sent, report, errWrong)
	}
	return nil
}

// sink is the target of the bulk flows. It reports the number of correct bytes, and
// closes the connection at the first wrong one.
func (b *bulk) sink(conn net.Conn) {
	buffer := make([]byte, chunkBytes)
	got := int64(0)
	for {
		n, err := conn.Read(buffer)
		if !pattern.Match(got, buffer[:n]) {
			_ = conn.(*net.TCPConn).SetLinger(0)
			return
		}
		got += int64(n)
		b.arrived(int64(n))
		if err == io.EOF {
			_, _ = conn.Write(binary.BigEndian.AppendUint64(nil, uint64(got)))
		}
		if err != nil {
			return
		}
	}
}
