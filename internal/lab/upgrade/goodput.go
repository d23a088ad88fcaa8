package upgrade

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

	"longhaul/internal/lab"
	"longhaul/internal/lab/pattern"
)

// bin is the grain of the goodput over time.
const bin = 100 * time.Millisecond

// Dip is how far the bulk flows' goodput fell below its usual level.
type Dip struct {
	// LongestSeconds is the longest time without a break in which every bin of
	// 100 ms was below nine tenths of the usual.
	LongestSeconds float64 `json:"longest_seconds"`
	DepthShare     float64 `json:"depth_share"`        // of the deepest bin: 0.2 is a fifth below
	SecondShare    float64 `json:"second_depth_share"` // of the deepest second
}

// worst takes the worst of both in each respect.
func (d Dip) worst(o Dip) Dip {
	return Dip{max(d.LongestSeconds, o.LongestSeconds), max(d.DepthShare, o.DepthShare), max(d.SecondShare, o.SecondShare)}
}

// enough of the usual goodput is no dip.
const enough = 0.9

// dipOf looks at the bytes of successive bins.
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

// bulk is flows that send as much as they can, and the bytes that have arrived
// over time.
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

// arrived counts bytes of the moment.
func (b *bulk) arrived(n int64) {
	at := int(time.Since(b.start) / bin)
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.bins) <= at {
		b.bins = append(b.bins, 0)
	}
	b.bins[at] += n
}

// between returns the whole bins of a time.
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

// measure compares the goodput after each upgrade with that before the first,
// of which it looks at pieces of the same length.
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

// startBulk begins n flows that send until ctx ends, and then end cleanly.
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

// send sends the pattern until ctx ends. The sink says then how much of it has
// come and was right.
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

// sink is the target of the bulk flows. It reports how many bytes have come as
// they should; at the first that has not it hangs up.
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
