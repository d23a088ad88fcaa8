package top

import (
	"errors"
	"fmt"
	"time"

	"longhaul/internal/sys/process"
	"longhaul/internal/sys/tcpinfo"
	"longhaul/internal/words/remedy"
)

// ErrRelayEnded is returned by [Watcher.Refresh] when the followed process has ended.
var ErrRelayEnded = errors.New("the relay has ended")

// Watcher keeps a table of the connections of a network namespace. It is not safe for
// concurrent use.
type Watcher struct {
	diag    *tcpinfo.Diag
	table   *Table
	started time.Time
	owners  process.Owners
	threads threads
	relay   process.Process // only its connections, unless it is zero
}

// Watch follows the connections of the calling thread's network namespace, or only
// those of the process pid unless that is 0.
func Watch(glance Glance, pid int) (*Watcher, error) {
	w := &Watcher{table: NewTable(glance), started: time.Now()}
	w.table.busy = w.threads.busy
	var err error
	if pid != 0 {
		w.relay.PID = pid
		if w.relay.Command, err = process.Command(pid); err != nil {
			return nil, err
		}
	}
	if w.diag, err = tcpinfo.OpenDiag(); err != nil {
		return nil, err
	}
	return w, nil
}

// Close ends the watch.
func (w *Watcher) Close() { w.diag.Close() }

// Table returns the connections of the last refresh.
func (w *Watcher) Table() *Table { return w.table }

// Refresh reads all connections.
func (w *Watcher) Refresh() error {
	clear(w.threads.now)
	if w.relay.PID != 0 {
		return w.refreshRelay()
	}
	err := w.table.Refresh(time.Since(w.started), func(visit func(*tcpinfo.Connection)) error {
		return w.diag.Each(tcpinfo.Connections, visit)
	})
	if err != nil {
		return err
	}
	w.identify()
	found, err := w.owners.Refresh(time.Now())
	if found {
		w.identify()
	}
	w.timeThreads()
	return err
}

// timeThreads has the connections' samples know the times of their programs' threads, and
// forgets those of other programs.
func (w *Watcher) timeThreads() {
	programs := map[int]bool{}
	for _, c := range w.table.Connections() {
		c.timeThreads()
		programs[c.Process.PID] = true
	}
	w.threads.clocks.Keep(func(pid int) bool { return programs[pid] })
}

// identify sets the known processes of the connections.
func (w *Watcher) identify() {
	for _, c := range w.table.Connections() {
		c.Process, _ = w.owners.Of(c.Inode)
	}
}

// refreshRelay reads the connections of the relay.
func (w *Watcher) refreshRelay() error {
	sockets, err := process.Sockets(w.relay.PID)
	switch {
	case errors.Is(err, process.ErrNoProcess):
		return ErrRelayEnded
	case errors.Is(err, process.ErrForbidden):
		return remedy.New(fmt.Errorf("find the relay's connections: %w", err), "run this as root")
	case err != nil:
		return err
	}
	err = w.table.Refresh(time.Since(w.started), func(visit func(*tcpinfo.Connection)) error {
		return w.diag.Each(tcpinfo.Connections, func(c *tcpinfo.Connection) {
			if sockets[c.Inode] {
				visit(c)
			}
		})
	})
	for _, c := range w.table.Connections() {
		c.Process = w.relay
	}
	w.timeThreads()
	return err
}

// threads has the times of the threads of programs that send.
type threads struct {
	clocks process.Clocks
	now    map[int]threadTimes // since the last refresh
}

// threadTimes are the times of the threads of a program, see [process.Busiest].
type threadTimes struct{ busy, waiting time.Duration }

// maxTimed is the most programs whose threads a refresh reads, which takes some 50 µs each.
const maxTimed = 64

// busy returns the time for which the busiest thread of a connection's program has been
// running or waiting for a CPU since it was first asked for, -1 if unknown, and that for which
// one has been waiting. It reads the threads only of programs that have data under way.
func (t *threads) busy(c *Connection) (busy, waiting time.Duration) {
	pid := c.Process.PID
	if pid == 0 || c.SendQueue == 0 && c.SentBps == 0 {
		return -1, 0
	}
	if known, ok := t.now[pid]; ok {
		return known.busy, known.waiting
	}
	if len(t.now) >= maxTimed {
		return -1, 0
	}
	busy, waiting, ok := t.clocks.Of(pid)
	if !ok {
		busy, waiting = -1, 0
	}
	if t.now == nil {
		t.now = map[int]threadTimes{}
	}
	t.now[pid] = threadTimes{busy, waiting}
	return busy, waiting
}

// Unseen returns a sentence on missing figures, or empty.
func (w *Watcher) Unseen() string {
	if w.owners.Forbidden == 0 {
		return ""
	}
	for _, c := range w.table.Connections() {
		if c.Process.PID == 0 && c.Inode != 0 {
			return "processes of other users have no name here; root sees them"
		}
	}
	return ""
}
