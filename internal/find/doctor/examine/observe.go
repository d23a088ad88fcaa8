package examine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"longhaul/internal/find/doctor"
	"longhaul/internal/sys/tcpinfo"
)

// errNothingSeen reports that no connection matched.
var errNothingSeen = errors.New("no such connection")

// sampling is a way to sample connections.
type sampling struct {
	// wanted selects connections. Several between the same two hosts, to the same
	// port, count as one program's.
	wanted func(*tcpinfo.Connection) bool
	during time.Duration
	every  time.Duration // between two samples
	// cpu returns the time for which the busiest thread of a socket's program has
	// been running or waiting for a CPU; negative: unknown. It may be nil.
	cpu func(*tcpinfo.Connection) time.Duration
	// each calls a function for every connection.
	each func(visit func(*tcpinfo.Connection)) error
}

// series has the samples of a connection.
type series struct {
	connection tcpinfo.Connection
	samples    []doctor.Sample
	since      time.Duration // of the first sample
	last       time.Duration
}

// moved returns the number of bytes sent and received between the first sample, or
// the connection's start, and the last.
func (s *series) moved(fromStart bool) (sent, received int64) {
	first, last := &s.samples[0].Info, &s.samples[len(s.samples)-1].Info
	sent, received = int64(last.BytesAcked), int64(last.BytesReceived)
	if !fromStart {
		sent, received = sent-int64(first.BytesAcked), received-int64(first.BytesReceived)
	}
	return sent, received
}

// observe samples the wanted connections, and observes the one that moved the most.
// It does not change them. It ends early with the context.
func observe(ctx context.Context, w sampling) (doctor.Observation, error) {
	seen := map[uint64]*series{}
	begin := time.Now()
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	var at time.Duration // exactly 0 for connections of the first list
	for {
		err := w.each(func(c *tcpinfo.Connection) {
			if !w.wanted(c) {
				return
			}
			one := seen[c.Cookie]
			if one == nil {
				one = &series{since: at}
				seen[c.Cookie] = one
			}
			one.add(c, at, w.cpu)
		})
		if err != nil {
			return doctor.Observation{}, err
		}
		if at >= w.during {
			break
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		if ctx.Err() != nil { // the ticker may be due at the same time
			return doctor.Observation{}, context.Cause(ctx)
		}
		at = time.Since(begin)
	}
	return pick(seen, at)
}

func (s *series) add(c *tcpinfo.Connection, at time.Duration, cpu func(*tcpinfo.Connection) time.Duration) {
	if len(s.samples) > 0 && s.last == at {
		return // twice in one list
	}
	sample := doctor.Sample{At: at, Info: c.Info, SendBuffer: -1, SendQueued: -1, RecvQueue: int64(c.RecvQueue), CPU: -1}
	if c.Memory.Known {
		sample.SendBuffer, sample.SendQueued = int64(c.Memory.SndBuf), int64(c.Memory.SndQueued)
	}
	if cpu != nil {
		sample.CPU = cpu(c)
	}
	s.connection, s.last = *c, at
	s.samples = append(s.samples, sample)
}

// pick returns an observation of the connection that moved the most.
func pick(seen map[uint64]*series, at time.Duration) (doctor.Observation, error) {
	all := make([]*series, 0, len(seen))
	for _, s := range seen {
		all = append(all, s)
	}
	if len(all) == 0 {
		return doctor.Observation{}, errNothingSeen
	}
	amount := func(s *series) int64 {
		sent, received := s.moved(s.since > 0)
		if s.last < at {
			sent += int64(s.connection.SendQueue) // sent before the connection ended
		}
		return max(sent, received)
	}
	slices.SortFunc(all, func(a, b *series) int {
		return cmp.Or(cmp.Compare(amount(b), amount(a)), cmp.Compare(len(b.samples), len(a.samples)), cmp.Compare(a.connection.Cookie, b.connection.Cookie))
	})
	most := all[0]
	o := doctor.Observation{
		Local: most.connection.Local, Remote: most.connection.Remote, CongestionControl: most.connection.CongestionControl,
		Samples: most.samples, FromStart: most.since > 0, Ended: most.last < at, Time: at,
	}
	for _, s := range all {
		if n := amount(s); n > 0 && sameService(&s.connection, &most.connection) {
			o.Connections++
			o.TotalBytes += n
		}
	}
	return o, nil
}

// sameService reports whether two connections are between the same two hosts, to
// the same port of one of them.
func sameService(a, b *tcpinfo.Connection) bool {
	return a.Local.Addr() == b.Local.Addr() && a.Remote.Addr() == b.Remote.Addr() &&
		(a.Local.Port() == b.Local.Port() || a.Remote.Port() == b.Remote.Port())
}

// between selects connections by their ends.
func between(local, remote End) func(*tcpinfo.Connection) bool {
	return func(c *tcpinfo.Connection) bool { return local.matches(c.Local) && remote.matches(c.Remote) }
}
