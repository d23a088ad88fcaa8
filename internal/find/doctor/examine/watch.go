package examine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/find/doctor"
	proc "longhaul/internal/sys/process"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/remedy"
)

// MinWatch is the minimum duration of [Examiner.Watch].
const MinWatch = time.Second

// sampleEvery is the time between two samples: short compared with connections of a
// second, and long compared with the cost of a sample.
const sampleEvery = 50 * time.Millisecond

// Connections are connections of this host. The zero value of a field is any.
type Connections struct {
	Local, Remote End
	PID           int // of the process
}

// String names the connections: "to 203.0.113.9:5432 of process 4711".
func (c Connections) String() string {
	var words []string
	if !c.Local.isAny() {
		words = append(words, "from "+c.Local.String())
	}
	if !c.Remote.isAny() {
		words = append(words, "to "+c.Remote.String())
	}
	if c.PID != 0 {
		words = append(words, fmt.Sprintf("of process %d", c.PID))
	}
	return strings.Join(words, " ")
}

// Watch observes the busiest of some connections of this host, and does not change
// them. With [Examiner.Test] it then tests the capacity of the path.
func (e *Examiner) Watch(ctx context.Context, c Connections) (doctor.Observation, error) {
	diag, err := tcpinfo.OpenDiag()
	if err != nil {
		return doctor.Observation{}, err
	}
	defer diag.Close()
	wanted, err := c.filter()
	if err != nil {
		return doctor.Observation{}, err
	}
	busy := &busyThreads{}
	e.Progress("watching connections %s for %v", c, e.During)
	o, err := observe(ctx, sampling{
		wanted: wanted, during: e.During, every: sampleEvery, cpu: busy.of,
		each: func(visit func(*tcpinfo.Connection)) error { return diag.Each(withData, visit) },
	})
	switch {
	case errors.Is(err, errNothingSeen):
		if pair := e.pairDown(ctx, c.Local, c.Remote); pair != nil {
			return doctor.Observation{Pair: pair}, nil
		}
		return o, remedy.New(fmt.Errorf("no connection %s in %v", c, e.During), "longhaul top --once lists connections")
	case err != nil:
		return o, err
	}
	o.Pair = e.pairOf(ctx, o.Local, o.Remote)
	if owner, ok := busy.owners.Of(busy.inode); ok {
		o.Program = owner.Command
	}
	if !e.SkipProbe {
		last := &o.Samples[len(o.Samples)-1].Info
		o.Path, err = probePath(ctx, o.Local.Addr(), o.Remote.Addr(), last.RTT)
		if err != nil {
			e.Note(err)
		}
		if last.State == tcpinfo.Established && last.Backoff > 0 {
			o.Path.Answers = answers(ctx, o.Remote)
		}
	}
	if e.Test {
		e.Progress("testing the path's capacity")
		own := func() (d delivered) {
			if c, err := diag.Get(o.Local, o.Remote); err == nil {
				d = delivered{float64(c.Info.Delivered) * float64(c.Info.SndMSS), float64(c.Info.Delivered)}
			}
			return d
		}
		server := net.JoinHostPort(o.Remote.Addr().String(), strconv.Itoa(int(e.TestPort)))
		if err := e.try(ctx, &o, trial{server: server, own: own}); err != nil {
			return o, err
		}
	}
	return o, nil
}

// withData are the states in which a connection may have data under way.
var withData = tcpinfo.States(tcpinfo.Established, tcpinfo.FinWait1, tcpinfo.CloseWait, tcpinfo.LastAck, tcpinfo.Closing)

// filter returns a filter of the connections.
func (c Connections) filter() (func(*tcpinfo.Connection) bool, error) {
	ends := between(c.Local, c.Remote)
	if c.PID == 0 {
		return ends, nil
	}
	if _, err := proc.Sockets(c.PID); err != nil {
		return nil, remedy.New(fmt.Errorf("process %d: %w", c.PID, err),
			"run it as root to see the processes of other users")
	}
	// The process may open sockets meanwhile.
	var sockets map[uint32]bool
	var at time.Time
	return func(one *tcpinfo.Connection) bool {
		if !ends(one) {
			return false
		}
		if time.Since(at) > sampleEvery {
			at = time.Now()
			if now, err := proc.Sockets(c.PID); err == nil {
				sockets = now
			}
		}
		return sockets[one.Inode]
	}, nil
}

// busyThreads measures the busy time of the threads of a socket's program.
type busyThreads struct {
	owners proc.Owners
	inode  uint32
	before map[int]time.Duration
	pid    int
}

// of returns the time for which the busiest thread of the connection's program has
// been running since the first call; -1: unknown.
func (b *busyThreads) of(c *tcpinfo.Connection) time.Duration {
	if b.pid == 0 {
		owner, ok := b.owners.Of(c.Inode)
		if !ok {
			if _, err := b.owners.Refresh(time.Now()); err != nil {
				return -1
			}
			if owner, ok = b.owners.Of(c.Inode); !ok {
				return -1
			}
		}
		b.pid, b.inode = owner.PID, c.Inode
	}
	now, err := proc.Threads(b.pid)
	if err != nil {
		return -1
	}
	if b.before == nil {
		b.before = now
	}
	return proc.Busiest(b.before, now)
}
