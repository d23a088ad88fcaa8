package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"longhaul/bench/kit"
	"longhaul/lab/tcpserver"
)

// crowdOptions describe the flows of a crowd.
type crowdOptions struct {
	flows   int           // at the same time
	opening time.Duration // over which the first of them open
	// Each lives for a random time in between. Its target ends first in every other
	// flow.
	minLife, maxLife time.Duration
	once             bool // none begins for one that ends
	// every has a flow begin at this interval, in place of one for each that ends.
	every time.Duration
	pace  pace
	seed  uint64

	// plan chooses the manners of a flow; nil: both sides have the crowd's pace.
	plan func(*rand.Rand) manners
	// ended takes each flow that is done, which the crowd then forgets; nil: it keeps all.
	ended func(*flow)
	// refused takes each connect that fails; nil: the crowd counts them.
	refused func(began time.Time, err error)
}

// crowd keeps flows open: another begins for each that ends.
type crowd struct {
	crowdOptions
	w      *world
	ending context.Context // done: all flows end
	end    context.CancelFunc
	all    sync.WaitGroup

	interrupted func() bool    // stops the reaction to an interrupt
	bulk        func(net.Conn) // takes the connections of bulkNumber; may be nil

	mu      sync.Mutex
	flows   map[uint64]*flow
	refused int      // connects that failed
	example string   // of their errors
	twice   []string // connections at the target for flows that had one, or were over

	// abandoned are flows whose client failed before their target had them.
	abandoned map[uint64]bool
}

func newCrowd(co crowdOptions) *crowd {
	return &crowd{crowdOptions: co, flows: map[uint64]*flow{}, abandoned: map[uint64]bool{}}
}

// crowded builds a world with a path of 100 ms, and a crowd that goes over it. It returns
// when the first of all flows have had the time to open.
func crowded(ctx context.Context, o kit.Options, way string, co crowdOptions) (*world, *crowd, error) {
	c := newCrowd(co)
	w, err := newWorld(ctx, o, conditions(outageRTT, outageRateBps), way, c.serve)
	if err != nil {
		return nil, nil, err
	}
	return w, c, c.gather(ctx, w)
}

// gather has the crowd go over a world. It returns when the first of all flows have had
// the time to open. If it fails, the world is closed.
func (c *crowd) gather(ctx context.Context, w *world) error {
	c.w = w
	c.ending, c.end = context.WithCancel(ctx)
	c.interrupted = context.AfterFunc(ctx, c.giveUp)
	if c.every > 0 {
		c.all.Go(c.arrive)
	}
	for i := range c.crowdOptions.flows {
		c.all.Go(func() { c.keep(i) })
	}
	w.before = c.finish
	err := kit.Pause(ctx, c.opening+time.Second)
	if err != nil {
		w.close()
	}
	return err
}

// finish has all flows end, and waits for them. It gives up those that hang.
func (c *crowd) finish() { c.finishWithin(patience) }

func (c *crowd) finishWithin(limit time.Duration) {
	c.end()
	late := time.AfterFunc(limit, c.giveUp)
	c.all.Wait()
	late.Stop()
	c.interrupted()
}

// giveUp has all flows fail that are not done.
func (c *crowd) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flows {
		f.client.giveUp()
		f.target.giveUp()
	}
}

// arrive begins flows at an even rate.
func (c *crowd) arrive() {
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for number := uint64(0); ; number++ {
		select {
		case <-tick.C:
			c.all.Go(func() {
				dice := rand.New(rand.NewPCG(c.seed, number))
				c.one(number, c.life(dice), dice)
			})
		case <-c.ending.Done():
			return
		}
	}
}

// life is for how long a flow lives.
func (c *crowd) life(dice *rand.Rand) time.Duration {
	return c.minLife + time.Duration(dice.Int64N(int64(c.maxLife-c.minLife)+1))
}

// keep keeps one flow open after the other.
func (c *crowd) keep(place int) {
	dice := rand.New(rand.NewPCG(c.seed, uint64(place)))
	if kit.Pause(c.ending, time.Duration(dice.Int64N(int64(c.opening)+1))) != nil {
		return
	}
	for turn := 0; c.ending.Err() == nil; turn++ {
		number := uint64(turn)*uint64(c.crowdOptions.flows) + uint64(place)
		came := c.one(number, c.life(dice), dice)
		if c.once {
			return
		}
		if !came && kit.Pause(c.ending, time.Second/2) != nil {
			return
		}
	}
}

// one runs one flow to its end. It returns false if it did not come to be.
func (c *crowd) one(number uint64, life time.Duration, dice *rand.Rand) bool {
	began := time.Now()
	conn, err := c.w.dial(c.ending)
	if err != nil {
		c.refuse(began, err)
		return false
	}
	until, cancel := context.WithTimeout(c.ending, life)
	defer cancel()
	plan := manners{client: manner{pace: c.pace}, target: manner{pace: c.pace}}
	if c.plan != nil {
		plan = c.plan(dice)
	}
	f := &flow{manners: plan, number: number, began: began, local: conn.LocalAddr().String(), seed: dice.Uint64(), targetUntil: until, targetDone: make(chan struct{})}
	if number%2 == 0 { // the client ends first
		var cancelTarget context.CancelFunc
		f.targetUntil, cancelTarget = context.WithTimeout(c.ending, life+plan.target.every)
		defer cancelTarget()
	}
	c.mu.Lock()
	c.flows[number] = f
	c.mu.Unlock()
	if _, err := conn.Write(f.header()); err != nil {
		f.client.fail(fmt.Errorf("write: %w", err))
		conn.Close()
	} else {
		f.client.run(until, conn, f.shift(true), f.shift(false), plan.client, f.dice(1))
	}
	if !c.abandon(f) {
		<-f.targetDone
	}
	if c.ended != nil {
		f.done = time.Now()
		c.ended(f)
		c.mu.Lock()
		delete(c.flows, number)
		c.mu.Unlock()
	}
	return true
}

// abandon has a flow whose client is done never reach its target. It returns false if it
// has reached it.
func (c *crowd) abandon(f *flow) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.taken {
		return false
	}
	f.taken, c.abandoned[f.number] = true, true
	return true
}

func (c *crowd) refuse(began time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case over(c.ending):
	case c.crowdOptions.refused != nil:
		c.crowdOptions.refused(began, err)
	default:
		c.refused++
		c.example = err.Error()
	}
}

// take returns a flow for its target's side, once.
func (c *crowd) take(number uint64) *flow {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flows[number]
	if f == nil || f.taken {
		return nil
	}
	f.taken = true
	return f
}

// echoNumber is that of flows whose bytes the target sends back.
const echoNumber = math.MaxUint64

// serve is the target of the crowd.
func (c *crowd) serve(conn net.Conn) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(conn, header[:]); err != nil {
		return // its client's side has the error
	}
	number := binary.BigEndian.Uint64(header[:])
	switch number {
	case echoNumber:
		tcpserver.Echo(conn)
		return
	case bulkNumber:
		c.bulk(conn)
		return
	}
	f := c.take(number)
	if f == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.abandoned[number] {
			c.twice = append(c.twice, fmt.Sprintf("flow %d again at %s", number, time.Now().Format(clock)))
		}
		return
	}
	defer close(f.targetDone)
	f.target.run(f.targetUntil, conn.(*net.TCPConn), f.shift(false), f.shift(true), f.manners.target, f.dice(2))
}

// doubled lists the connections at the target for flows that had one, or of strangers.
func (c *crowd) doubled() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.twice
}

// dice is the random choices of one side.
func (f *flow) dice(side uint64) *rand.Rand { return rand.New(rand.NewPCG(f.seed, side)) }

// clock is the form of times that are held against a relay's log.
const clock = "15:04:05.000"

// tally is the outcome of a crowd.
type tally struct {
	flows   int
	refused int      // connects that failed
	cut     int      // flows that were reset, or ended before their time
	hung    int      // flows that did not end
	wrong   int      // flows with bytes that were not sent, or an end that was not
	lost    int64    // bytes that were sent and did not arrive, or twice, in flows that ended cleanly
	reasons []string // of the flows that were cut or wrong, by the near relay's log
	example string
}

// tally counts the outcomes of all flows, which are done.
func (c *crowd) tally() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := tally{flows: len(c.flows), refused: c.refused, wrong: len(c.twice), example: c.example}
	if len(c.twice) > 0 {
		t.example = "reached the target twice: " + c.twice[0]
	}
	for _, f := range c.flows {
		failed := t.cut + t.hung + t.wrong
		t.count(f)
		if t.cut+t.hung+t.wrong > failed {
			lines := linesSince(c.w.heard("client="+f.local+" "), f.began)
			t.reasons = append(t.reasons, reasonOf(lines))
			if len(t.reasons) == 1 && len(lines) > 0 {
				t.example += "; " + lines[0]
			}
		}
	}
	return t
}

// linesSince drops the lines of flows that began before a moment, whose client had the same
// address.
func linesSince(lines []string, moment time.Time) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		_, after, _ := strings.Cut(line, " start=")
		text, _, _ := strings.Cut(after, " ")
		start, err := time.Parse(time.RFC3339, text)
		return err == nil && start.Before(moment.Truncate(time.Millisecond))
	})
}

// reasonOf is what the near relay's log says of the end of a flow, whose line is the first.
func reasonOf(lines []string) string {
	if len(lines) == 0 {
		return "nothing"
	}
	_, after, _ := strings.Cut(lines[0], " end=")
	reason, _, _ := strings.Cut(after, " ")
	return reason
}

// said counts the reasons: "3 end, 1 peer-restarted".
func (t tally) said() string {
	counts := map[string]int{}
	for _, r := range t.reasons {
		counts[r]++
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	return strings.Join(parts, ", ")
}

// count adds one flow.
func (t *tally) count(f *flow) {
	err := errors.Join(f.client.err, f.target.err)
	early := f.client.cleanEnd() && !f.target.ended || f.target.cleanEnd() && !f.client.ended
	switch {
	case early:
		t.wrong++
		err = errors.Join(errors.New("a clean end of a stream that had none"), err)
	case errors.Is(err, errWrong):
		t.wrong++
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.hung++
	case err != nil:
		t.cut++
	default:
		for _, way := range [][2]*side{{&f.client, &f.target}, {&f.target, &f.client}} {
			if missing := way[0].sent - way[1].got; missing != 0 {
				t.lost += max(missing, -missing)
				err = errors.Join(err, fmt.Errorf("%d bytes sent, %d received", way[0].sent, way[1].got))
			}
		}
	}
	if err != nil && t.example == "" {
		t.example = fmt.Sprintf("flow %d of %s, begun at %s: %v", f.number, f.local, f.began.Format(clock), err)
		for at, s := range map[string]*side{"client": &f.client, "target": &f.target} {
			if s.err != nil {
				t.example += fmt.Sprintf("; %s failed at %s", at, s.failedAt.Format(clock))
			}
		}
	}
}

// cleanEnd reports whether the side saw the other's end. The kernel tells of a reset
// once: if it told a write, the next read looks like an end.
func (a *account) cleanEnd() bool { return a.sawEnd && a.err == nil }

// figures are those of the outcome: nothing may fail.
func (t tally) figures(note func(kit.Measured)) {
	note(kit.Measured{Name: "flows", Value: float64(t.flows)})
	for _, m := range []kit.Measured{
		{Name: "connects refused", Value: float64(t.refused)},
		{Name: "flows cut", Value: float64(t.cut)},
		{Name: "flows that did not end", Value: float64(t.hung)},
		{Name: "flows with wrong bytes or ends", Value: float64(t.wrong)},
		{Name: "bytes lost or doubled", Value: float64(t.lost)},
	} {
		if m.Bound, m.Exact = kit.AtMost(0), true; m.Value > 0 {
			m.Example = t.example
			if len(t.reasons) > 0 {
				m.Example = fmt.Sprintf("the near relay's log says %s; %s", t.said(), t.example)
			}
		}
		note(m)
	}
}

// laterBy returns for each side that expected bytes after a moment how much later the
// first came.
func (c *crowd) laterBy(moment time.Time) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for _, f := range c.flows {
		for _, s := range []*side{&f.client, &f.target} {
			if f.began.Before(moment) {
				if late, ok := s.laterBy(moment); ok {
					all = append(all, late)
				}
			}
		}
	}
	return all
}

// laterBy is how long after a moment a side received its first bytes. It is not ok if
// the side was done before the moment.
func (s *side) laterBy(moment time.Time) (late time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := slices.BinarySearchFunc(s.arrivals, moment, time.Time.Compare)
	if i == len(s.arrivals) {
		return 0, false
	}
	return s.arrivals[i].Sub(moment), true
}
