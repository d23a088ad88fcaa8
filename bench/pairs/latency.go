package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"longhaul/bench/kit"
	"longhaul/internal/words/stats"
	"longhaul/lab"
	"longhaul/lab/pattern"
)

// The path of new flows.
const (
	longRTT     = 300 * time.Millisecond
	longRateBps = 100e6
)

const answerBytes = 64 << 10

// answerWithin is the bound of an answer: one round trip, the time of the bytes on the
// wire, and a tenth.
var answerWithin = 1.1 * (longRTT + 5*time.Millisecond).Seconds()

// What a client asks of the target, with a number of bytes behind it.
const (
	askSend    = 'S' // that the target sends so many bytes
	askReceive = 'R' // that it receives so many, and answers with one
	askBulk    = 'B' // the same, and it keeps the arrivals
)

const askBytes = 1 + 8

// target sends or receives what it is asked.
type target struct{ arrivals chan []arrival }

func (t target) serve(conn net.Conn) {
	var ask [askBytes]byte
	for {
		if _, err := io.ReadFull(conn, ask[:]); err != nil {
			return
		}
		n := int64(binary.BigEndian.Uint64(ask[1:]))
		if ask[0] == askSend {
			if sendPattern(conn, n) != nil {
				return
			}
			continue
		}
		got, err := readBulk(conn, n, time.Now())
		if err != nil || write(conn, ask[:1]) != nil {
			return
		}
		if ask[0] == askBulk {
			t.arrivals <- got
		}
	}
}

func request(kind byte, n int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{kind}, uint64(n))
}

// sendPattern sends n bytes of the pattern.
func sendPattern(conn net.Conn, n int64) error {
	for sent := int64(0); sent < n; {
		m, err := conn.Write(pattern.At(sent, min(256<<10, n-sent)))
		sent += int64(m)
		if err != nil {
			return err
		}
	}
	return nil
}

// readPattern reads n bytes and compares them. arrived, unless nil, is called with the
// bytes so far.
func readPattern(conn net.Conn, n int64, arrived func(total int64)) (total int64, err error) {
	buffer := make([]byte, min(n, 256<<10))
	for total < n {
		m, err := conn.Read(buffer[:min(n-total, int64(len(buffer)))])
		if !pattern.Match(total, buffer[:m]) {
			return total, errWrong
		}
		total += int64(m)
		if arrived != nil && m > 0 {
			arrived(total)
		}
		if err != nil && total < n {
			return total, fmt.Errorf("after %d of %d bytes: %w", total, n, err)
		}
	}
	return total, nil
}

// warmUp uses the path in both directions, one flow after the other, and leaves it
// quiet for a while after each. A pair has the lane of the first flow back by then, so
// that the second one takes it: otherwise each of two lanes has an open window one way.
func (w *world) warmUp(ctx context.Context) error {
	const bytes = 60e6 // of which the second half is sent at the path's rate
	for _, kind := range []byte{askReceive, askSend} {
		conn, err := w.dial(ctx)
		if err != nil {
			return err
		}
		err = conn.SetDeadline(time.Now().Add(2 * patience))
		if err == nil {
			err = write(conn, request(kind, bytes))
		}
		if err == nil && kind == askReceive {
			err = errors.Join(sendPattern(conn, bytes), readOne(conn))
		} else if err == nil {
			_, err = readPattern(conn, bytes, nil)
		}
		conn.Close()
		if err != nil {
			return w.errorf("warm up: %w", err)
		}
		if err := kit.Pause(ctx, 3*time.Second); err != nil {
			return err
		}
	}
	return nil
}

func readOne(conn net.Conn) error {
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

// answer times answers on new flows, from connect to the last byte.
func answer(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	w, err := newWorld(ctx, o, conditions(longRTT, longRateBps), way, target{}.serve)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.warmUp(ctx); err != nil {
		return err
	}
	var took []float64
	for range kit.Pick(o, 30, 8) {
		t, err := w.ask(ctx)
		if err != nil {
			return w.errorf("answer: %w", err)
		}
		took = append(took, t.Seconds())
		if err := kit.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
	slices.Sort(took)
	note(kit.Measured{Name: "answers", Value: float64(len(took))})
	note(kit.Measured{Name: "64 KiB complete, median", Unit: "s", Value: stats.At(took, 0.5), Bound: kit.AtMost(answerWithin)})
	note(kit.Measured{Name: "64 KiB complete, slowest", Unit: "s", Value: took[len(took)-1]})
	return nil
}

// ask has the target answer on a new flow.
func (w *world) ask(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	conn, err := w.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := errors.Join(conn.SetDeadline(began.Add(patience)), write(conn, request(askSend, answerBytes))); err != nil {
		return 0, err
	}
	_, err = readPattern(conn, answerBytes, nil)
	return time.Since(began), err
}

// start measures the first bytes of bulk flows, in both directions.
func start(ctx context.Context, o kit.Options, way string, _ int, note func(kit.Measured)) error {
	c := conditions(longRTT, longRateBps)
	t := target{make(chan []arrival, 1)}
	w, err := newWorld(ctx, o, c, way, t.serve)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.warmUp(ctx); err != nil {
		return err
	}
	for range kit.Pick(o, 5, 2) {
		for _, up := range []bool{true, false} {
			got, err := w.bulk(ctx, up, t.arrivals)
			if err != nil {
				return w.errorf("bulk: %w", err)
			}
			noteStart(note, map[bool]string{true: "up", false: "down"}[up], got, c)
			if err := kit.Pause(ctx, 2*time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// arrival is when a number of bytes was complete.
type arrival struct {
	at    time.Duration // since connect for the client, since accept for the target
	total int64
}

// bulkBytes are what a bulk flow sends: 3 s of the path.
const bulkBytes = 3 * longRateBps / 8

// readBulk reads n bytes and returns when they came.
func readBulk(conn net.Conn, n int64, began time.Time) (got []arrival, err error) {
	_, err = readPattern(conn, n, func(total int64) { got = append(got, arrival{time.Since(began), total}) })
	return got, err
}

// bulk runs one bulk flow, from host-a to host-b if it is up, and returns the arrivals.
func (w *world) bulk(ctx context.Context, up bool, arrivals <-chan []arrival) ([]arrival, error) {
	began := time.Now()
	conn, err := w.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(began.Add(patience)); err != nil {
		return nil, err
	}
	if !up {
		if err := write(conn, request(askSend, bulkBytes)); err != nil {
			return nil, err
		}
		return readBulk(conn, bulkBytes, began)
	}
	if err := errors.Join(write(conn, request(askBulk, bulkBytes)), sendPattern(conn, bulkBytes), readOne(conn)); err != nil {
		return nil, err
	}
	return <-arrivals, nil
}

// The bound of bulk flows: so much of the limit from the first byte on.
const startShare = 0.9

// noteStart notes the goodput of the first second after the first byte, as a share of
// the limit.
func noteStart(note func(kit.Measured), direction string, got []arrival, c lab.Conditions) {
	first, second := got[0].at, int64(0)
	for _, a := range got {
		if a.at-first > time.Second {
			break
		}
		second = a.total
	}
	note(kit.Measured{Name: direction + ": first second, of the limit", Value: float64(second) * 8 / c.LimitBps(), Bound: kit.AtLeast(startShare)})
}
