package process

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// Looking through /proc takes at most this part of the time: it is looked
	// through again after so many times as long as it took.
	restAfterScan = 50

	// An inode that nobody was found to have is looked for again after this. (A
	// socket without a process is one that is on its way to another, or whose
	// process may not be looked at.)
	retryAfter = 30 * time.Second
)

// Owners remembers which process has which socket. The zero value is ready. It
// is not for several goroutines at once.
type Owners struct {
	byInode map[uint32]Process
	missing map[uint32]time.Time // since when
	unknown bool                 // an inode was asked for that is in neither
	rest    time.Time            // no scan before

	// Forbidden is how many processes could not be looked at, for they belong
	// to other users.
	Forbidden int
}

// Of is the process that has a socket. What is not known is found by the next
// Refresh, if the process may be looked at. Of several processes it is the one
// with the least PID.
func (o *Owners) Of(inode uint32) (Process, bool) {
	p, ok := o.byInode[inode]
	if !ok && inode != 0 {
		if _, known := o.missing[inode]; !known {
			if o.missing == nil {
				o.missing = map[uint32]time.Time{}
			}
			o.missing[inode] = time.Time{}
			o.unknown = true
		}
	}
	return p, ok
}

// Refresh looks through /proc if there is something to find. It reports whether
// it did.
func (o *Owners) Refresh(now time.Time) (bool, error) {
	if now.Before(o.rest) {
		return false, nil
	}
	for inode, since := range o.missing {
		if !since.IsZero() && now.Sub(since) >= retryAfter {
			delete(o.missing, inode) // who still wants it will ask
		}
	}
	if !o.unknown {
		return false, nil
	}
	started := time.Now()
	if err := o.scan(); err != nil {
		return false, err
	}
	o.unknown = false
	for inode, since := range o.missing {
		if _, found := o.byInode[inode]; found {
			delete(o.missing, inode)
		} else if since.IsZero() {
			o.missing[inode] = now
		}
	}
	o.rest = now.Add(restAfterScan * time.Since(started))
	return true, nil
}

// scan reads which process has which socket, anew.
func (o *Owners) scan() error {
	running, err := procfs.AllProcs()
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	if o.byInode == nil {
		o.byInode = map[uint32]Process{}
	}
	clear(o.byInode)
	o.Forbidden = 0
	for _, r := range running {
		p := Process{PID: r.PID}
		err = eachSocket(r, func(inode uint32) {
			if other, taken := o.byInode[inode]; taken && other.PID < p.PID {
				return
			}
			if p.Command == "" {
				p.Command, _ = r.Comm() // empty if it has just ended
			}
			o.byInode[inode] = p
		})
		if err != nil && !isGone(err) {
			o.Forbidden++
		}
	}
	return nil
}
