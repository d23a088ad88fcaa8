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
	relay   process.Process // only its connections, unless it is zero
}

// Watch follows the connections of the calling thread's network namespace, or only
// those of the process pid unless that is 0.
func Watch(glance Glance, pid int) (*Watcher, error) {
	w := &Watcher{table: NewTable(glance), started: time.Now()}
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
	return err
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
	return err
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
