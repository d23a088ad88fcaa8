package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"
)

// Of the slow reader: how many flows at once, and how fast each is read.
var slowFlows = 8

const (
	slowRead      = 4 << 10
	slowReadEvery = 50 * time.Millisecond // 80 kB/s
)

// What counts as flat, between the highest and the lowest sample, and how
// often they are taken. What the queues hold is asked of the relay, to which
// each answer costs some garbage of its own.
const (
	flatResident   = 2 << 20     // bytes
	flatQueues     = 0.25        // of the highest
	slowFillMost   = time.Minute // by which the queues must be full
	residentEvery  = time.Second / 10
	queuesEveryNth = 20 // sample of the resident memory
)

// SlowResult is what came of flows whose readers are slow.
type SlowResult struct {
	Seconds    float64      `json:"seconds"`
	Flows      int          `json:"flows"`
	Bytes      int64        `json:"bytes"` // sent, and read
	Relays     []SlowMemory `json:"relays"`
	Violations []string     `json:"violations"`
}

// SlowMemory is what a relay held once the queues were full.
type SlowMemory struct {
	Relay            string `json:"relay"`
	ResidentMinBytes int64  `json:"resident_min_bytes"`
	ResidentMaxBytes int64  `json:"resident_max_bytes"`
	QueuesMinBytes   int64  `json:"queues_min_bytes"` // sockets and pipes, as the kernel counts
	QueuesMaxBytes   int64  `json:"queues_max_bytes"`
}

// runSlow has clients send as fast as they can to targets that read slowly.
// Once the queues are full it watches the relays' memory for a time. At the end the targets read the rest, and
// every byte must be there.
func runSlow(ctx context.Context, w *world, seed uint64, length time.Duration) (SlowResult, error) {
	result := SlowResult{Flows: slowFlows, Violations: []string{}}
	listener, err := w.listen(ctx)
	if err != nil {
		return result, err
	}
	defer listener.Close()
	slow, stop := context.WithCancel(ctx)
	defer stop()

	var sent, read atomic.Int64
	sums := make([][sha256.Size]byte, slowFlows)
	failures := make(chan error, 2*slowFlows)
	var sides sync.WaitGroup
	for i := range uint64(slowFlows) {
		conn, err := w.dial(ctx, mainPort)
		if err != nil {
			return result, err
		}
		defer conn.Close()
		accepted, err := listener.AcceptTCP()
		if err != nil {
			return result, err
		}
		defer accepted.Close()
		sides.Go(func() {
			n, sum, err := sendUntil(slow, conn, newPattern(seed, i, true))
			sums[i] = sum
			sent.Add(n)
			failures <- err
		})
		sides.Go(func() {
			n, err := readSlowly(slow, accepted)
			read.Add(n)
			failures <- err
		})
	}
	for _, r := range w.all() {
		result.Relays = append(result.Relays, SlowMemory{Relay: r.Name})
	}
	err = w.watchFill(slow)
	if err == nil {
		watched, end := context.WithTimeout(slow, length)
		err = w.watch(watched, result.Relays)
		end()
	}
	stop()
	sides.Wait()
	close(failures)
	for failure := range failures {
		if failure != nil {
			result.Violations = append(result.Violations, failure.Error())
		}
	}
	result.Seconds, result.Bytes = length.Seconds(), read.Load()
	if sent.Load() != read.Load() {
		result.Violations = append(result.Violations, fmt.Sprintf("%d bytes were sent, and %d read", sent.Load(), read.Load()))
	}
	for _, m := range result.Relays {
		if grown := m.ResidentMaxBytes - m.ResidentMinBytes; grown > flatResident {
			result.Violations = append(result.Violations, fmt.Sprintf("%s: its resident memory varies by %.1f MB", m.Relay, float64(grown)/1e6))
		}
		if grown := m.QueuesMaxBytes - m.QueuesMinBytes; float64(grown) > flatQueues*float64(m.QueuesMaxBytes) {
			result.Violations = append(result.Violations, fmt.Sprintf("%s: what its sockets and pipes hold varies by %.1f of %.1f MB",
				m.Relay, float64(grown)/1e6, float64(m.QueuesMaxBytes)/1e6))
		}
	}
	return result, errors.Join(err, ctx.Err())
}

// sendUntil sends until the context ends, and then ends the stream with the
// hash of all that was sent before.
func sendUntil(ctx context.Context, conn *net.TCPConn, content *pattern) (n int64, sum [sha256.Size]byte, err error) {
	hash := sha256.New()
	for ctx.Err() == nil {
		chunk := content.at(n, 64<<10)
		// A write may wait behind the reader's own pace.
		conn.SetWriteDeadline(time.Now().Add(10 * time.Minute))
		m, err := conn.Write(chunk)
		hash.Write(chunk[:m])
		n += int64(m)
		if err != nil {
			return n, sum, fmt.Errorf("a client could not send: %w", err)
		}
	}
	sum = [sha256.Size]byte(hash.Sum(nil))
	tail := binary.BigEndian.AppendUint64(sum[:], uint64(n))
	if _, err := conn.Write(tail); err != nil {
		return n, sum, fmt.Errorf("a client could not send: %w", err)
	}
	return n, sum, conn.CloseWrite()
}

const tailBytes = sha256.Size + 8

// readSlowly reads slowly until the context ends, and then the rest at once.
// It returns how many bytes came before the tail, which must tell the same and
// their hash.
func readSlowly(ctx context.Context, conn *net.TCPConn) (int64, error) {
	_ = conn.SetReadBuffer(64 << 10)
	hash := sha256.New()
	var n int64
	last := make([]byte, 0, 2*slowRead) // not hashed yet: the tail may be in it
	take := func(p []byte) {
		last = append(last, p...)
		if ripe := len(last) - tailBytes; ripe > 0 {
			hash.Write(last[:ripe])
			n += int64(ripe)
			last = last[:copy(last, last[ripe:])]
		}
	}
	buf := make([]byte, slowRead)
	for {
		if ctx.Err() == nil {
			pause(ctx, slowReadEvery)
		}
		conn.SetReadDeadline(time.Now().Add(stallLimit))
		m, err := conn.Read(buf)
		take(buf[:m])
		if err == io.EOF {
			break
		}
		if err != nil {
			return n, fmt.Errorf("a target could not read: %w", err)
		}
	}
	conn.CloseWrite()
	if len(last) != tailBytes || !bytes.Equal(last[:sha256.Size], hash.Sum(nil)) || binary.BigEndian.Uint64(last[sha256.Size:]) != uint64(n) {
		return n, fmt.Errorf("a target read %d bytes, which are not what was sent", n)
	}
	return n, nil
}

// fillLooks is for how many looks at the queues, half a second apart, they must not
// have grown to count as full.
var fillLooks = 6

// watchFill waits until what the relays' queues hold no longer grows.
func (w *world) watchFill(ctx context.Context) error {
	const between, steady = time.Second / 2, 0.02
	var held []int64
	for began := time.Now(); time.Since(began) < slowFillMost; pause(ctx, between) {
		var now int64
		for _, r := range w.all() {
			s, err := r.Status(ctx)
			if err != nil {
				return err
			}
			now += s.Memory.UsedBytes
		}
		if n := len(held); n >= fillLooks && float64(now) < (1+steady)*float64(held[n-fillLooks]) {
			return nil
		}
		held = append(held, now)
	}
	return fmt.Errorf("the queues were not full within %v", slowFillMost)
}

// watch samples the relays' memory until the context ends.
func (w *world) watch(ctx context.Context, into []SlowMemory) error {
	ticker := time.NewTicker(residentEvery)
	defer ticker.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		for i, r := range w.all() {
			m := &into[i]
			resident, err := residentBytes(r.PID())
			if err != nil {
				return err
			}
			if n == 0 {
				m.ResidentMinBytes = resident
			}
			m.ResidentMinBytes, m.ResidentMaxBytes = min(m.ResidentMinBytes, resident), max(m.ResidentMaxBytes, resident)
			if n%queuesEveryNth != 0 {
				continue
			}
			s, err := r.Status(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			if n == 0 {
				m.QueuesMinBytes = s.Memory.UsedBytes
			}
			m.QueuesMinBytes, m.QueuesMaxBytes = min(m.QueuesMinBytes, s.Memory.UsedBytes), max(m.QueuesMaxBytes, s.Memory.UsedBytes)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func residentBytes(pid int) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	statm, err := p.Statm()
	return int64(statm.ResidentBytes()), err
}

func (r SlowResult) write(w io.Writer) {
	fmt.Fprintf(w, "%d readers of %.0f kB/s for %.0f s: %.1f MB sent and read\n", r.Flows, float64(slowRead)/slowReadEvery.Seconds()/1e3, r.Seconds, float64(r.Bytes)/1e6)
	for _, m := range r.Relays {
		fmt.Fprintf(w, "%s: resident %.1f to %.1f MB, sockets and pipes %.1f to %.1f MB\n", m.Relay,
			float64(m.ResidentMinBytes)/1e6, float64(m.ResidentMaxBytes)/1e6, float64(m.QueuesMinBytes)/1e6, float64(m.QueuesMaxBytes)/1e6)
	}
	writeViolations(w, r.Violations)
}
