package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/lab"
	"longhaul/lab/relays"
	"longhaul/lab/tcpserver"
)

const churnClients = 16 // at once

// ChurnResult is what came of many short connections and reloads.
type ChurnResult struct {
	Seconds     float64       `json:"seconds"`
	Connections int64         `json:"connections"`
	Reloads     int           `json:"reloads"` // of all relays together
	Failed      int64         `json:"failed"`  // connections that could not be made, or brought other bytes
	Bytes       int64         `json:"bytes"`   // read by targets and clients
	Relays      []ChurnCounts `json:"relays"`
	Violations  []string      `json:"violations"`
}

// ChurnCounts is what a relay holds before and after.
type ChurnCounts struct {
	Relay             string `json:"relay"`
	DescriptorsBefore int    `json:"descriptors_before"` // without pipes kept for later
	DescriptorsAfter  int    `json:"descriptors_after"`
	GoroutinesBefore  int    `json:"goroutines_before"`
	GoroutinesAfter   int    `json:"goroutines_after"`
	ResidentBefore    int64  `json:"resident_before_bytes"`
	ResidentAfter     int64  `json:"resident_after_bytes"`
	Flows             int64  `json:"flows"` // that it counted
}

// runChurn makes short connections, each with some bytes up and their hash
// back, while the relays are reloaded again and again.
func runChurn(ctx context.Context, w *world, seed uint64, connections int64, reloads int) (ChurnResult, error) {
	result := ChurnResult{Violations: []string{}}
	for _, host := range w.HostNames() { // ports in TIME_WAIT cannot be used again for a minute
		if err := w.Host(host).Sysctl("net.ipv4.ip_local_port_range", "10000 65535"); err != nil {
			return result, err
		}
	}
	before, err := w.statuses(ctx)
	if err != nil {
		return result, err
	}
	listener, err := w.listen(ctx)
	if err != nil {
		return result, err
	}
	stop := tcpserver.Serve(listener, answerWithHash)
	defer stop()

	var made, failed, moved atomic.Int64
	var firstFailure atomic.Pointer[error]
	var reloading, clients sync.WaitGroup
	reloaded := make(chan error, 1)
	busy := atomic.Bool{}
	busy.Store(true)
	began := time.Now()
	reloading.Go(func() {
		defer busy.Store(false)
		for i := range reloads {
			r := w.all()[i%3]
			if err := r.Reload(ctx, w.config(r, 1+i/3)); err != nil {
				reloaded <- err
				return
			}
			result.Reloads++
		}
		reloaded <- nil
	})
	for range churnClients {
		clients.Go(func() {
			// One thread inside the host for all of a client's connections.
			_ = w.Host("host-a").Do(func() error {
				for ctx.Err() == nil && (busy.Load() || made.Load() < connections) {
					n, err := askForHash(ctx, newPattern(seed, uint64(made.Add(1)), true))
					moved.Add(n)
					if err != nil {
						failed.Add(1)
						firstFailure.CompareAndSwap(nil, &err)
					}
				}
				return nil
			})
		})
	}
	clients.Wait()
	reloading.Wait()
	result.Seconds = time.Since(began).Seconds()
	stop()
	if err := errors.Join(<-reloaded, ctx.Err()); err != nil {
		return result, err
	}
	result.Connections, result.Failed, result.Bytes = made.Load(), failed.Load(), moved.Load()
	if e := firstFailure.Load(); e != nil {
		result.Violations = append(result.Violations, fmt.Sprintf("%d connections failed; the first: %v", result.Failed, *e))
	}
	for i, r := range w.all() {
		if err := r.Reload(ctx, w.config(r, 0)); err != nil {
			return result, err
		}
		after, err := r.Settled(ctx, before[i], relays.Patience)
		if err != nil {
			result.Violations = append(result.Violations, err.Error())
		}
		c := ChurnCounts{
			Relay:             r.Name,
			DescriptorsBefore: before[i].OpenBeyondPipes(), DescriptorsAfter: after.OpenBeyondPipes(),
			GoroutinesBefore: before[i].Process.Goroutines, GoroutinesAfter: after.Process.Goroutines,
			ResidentBefore: before[i].Process.ResidentBytes, ResidentAfter: after.Process.ResidentBytes,
			Flows: after.FlowsTotal("main") - before[i].FlowsTotal("main"),
		}
		result.Relays = append(result.Relays, c)
	}
	if near, far := result.Relays[0].Flows, result.Relays[1].Flows+result.Relays[2].Flows; near != result.Connections || far != near {
		result.Violations = append(result.Violations, fmt.Sprintf("the near relay counted %d flows, the far ones %d, and there were %d", near, far, result.Connections))
	}
	return result, nil
}

// answerWithHash is the target's side: it reads to the end and sends the hash.
func answerWithHash(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(stallLimit))
	hash := sha256.New()
	if _, err := io.Copy(hash, conn); err == nil {
		_, _ = conn.Write(hash.Sum(nil))
	}
}

// askForHash is the client's side. It returns how many bytes are known to
// have arrived, both ways.
func askForHash(ctx context.Context, content *pattern) (int64, error) {
	d := net.Dialer{Timeout: stallLimit}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(lab.RelayA, mainPort).String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	conn := c.(*net.TCPConn)
	conn.SetDeadline(time.Now().Add(stallLimit))
	data := content.at(0, 8+int(content.start%4096))
	if _, err := conn.Write(data); err != nil {
		return 0, err
	}
	if err := conn.CloseWrite(); err != nil {
		return 0, err
	}
	reply, err := io.ReadAll(conn)
	if want := sha256.Sum256(data); err == nil && !bytes.Equal(reply, want[:]) {
		err = fmt.Errorf("a reply of %d bytes is not the hash of the %d that were sent", len(reply), len(data))
	}
	if err != nil {
		return 0, err
	}
	return int64(len(data) + len(reply)), nil
}

func (r ChurnResult) write(w io.Writer) {
	fmt.Fprintf(w, "%d short connections, %d reloads in %.1f s: %d failed, %.1f MB\n", r.Connections, r.Reloads, r.Seconds, r.Failed, float64(r.Bytes)/1e6)
	for _, c := range r.Relays {
		fmt.Fprintf(w, "%s: descriptors %d before, %d after; goroutines %d, %d; resident %.1f MB, %.1f MB\n", c.Relay,
			c.DescriptorsBefore, c.DescriptorsAfter, c.GoroutinesBefore, c.GoroutinesAfter,
			float64(c.ResidentBefore)/1e6, float64(c.ResidentAfter)/1e6)
	}
	writeViolations(w, r.Violations)
}
