package process

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// Scans of /proc take at most this share of the time: the next scan waits this
	// multiple of the last one's duration.
	restAfterScan = 50

	// An inode without a process is searched again after this time. (Such a socket
	// is on its way to another process, or its process is unreadable.)
	retryAfter = 30 * time.Second
)

// Owners caches the processes of sockets. The zero value is ready. It is not safe for
// concurrent use.
type Owners struct {
	byInode map[uint32]Process
	missing map[uint32]time.Time // by start
	unknown bool                 // the last request was for an inode in neither map
	rest    time.Time            // no scan before

	// Forbidden is the number of unreadable processes of other users.
	Forbidden int
}

// Of returns the process of a socket. The next Refresh finds an unknown one, if the
// process is readable. Of several processes it returns the one with the lowest PID.
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

// Refresh scans /proc if there are inodes to find. It reports whether it did.
func (o *Owners) Refresh(now time.Time) (bool, error) {
	if now.Before(o.rest) {
		return false, nil
	}
	for inode, since := range o.missing {
		if !since.IsZero() && now.Sub(since) >= retryAfter {
			delete(o.missing, inode) // the next Of adds it again
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

// scan reads the processes of all sockets.
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
