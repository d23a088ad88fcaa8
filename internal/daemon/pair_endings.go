package daemon

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"longhaul/internal/pair"
)

// A process that has ended in order tells the processes that follow it: a near relay in an outage may
// have sent it an OPEN, and hears from them that it was never carried out. They ask for it at its door,
// each with a connection that stays open: one that ends without such news is that of a process that
// has died. A process also passes on what it hears of those before it, so that an upgrade loses none.

// Bounds of what a process keeps of others that have ended, and of who asks for it.
const (
	maxEndings   = 64
	maxFollowers = 16
	maxOwed      = 128 // sessions in one message
)

// doorFollow is the first byte of a message that asks for endings.
const doorFollow = 2

// ending is how a process has ended.
type ending struct {
	Instance string      `json:"instance"` // in hexadecimal
	InOrder  bool        `json:"in_order"`
	Owed     []pair.Owed `json:"owed,omitempty"`
}

// news is a message to a follower: an ending, or what remains open behind all that the sender knows. A
// process that does not know the latter takes it for the ending of no instance.
type news struct {
	ending
	Complete bool     `json:"complete,omitempty"`
	Open     []string `json:"open,omitempty"` // instances of which the sender may still tell
}

// endings are those that a process knows of.
type endings struct {
	mu        sync.Mutex
	known     []ending            // the latest last
	followed  map[string]net.Conn // by instance: those that have not ended
	before    string              // the instance of the process before this one, which knows of all before it
	lost      []string            // instances of which that one may still tell
	followers []*net.UnixConn
	closed    bool
}

// follow asks older processes, the oldest first, for their endings.
func (e *endings) follow(all []olderPair, failed func(error)) (read []func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followed = map[string]net.Conn{}
	for i, one := range slices.Backward(all) {
		if !one.Tells {
			continue
		}
		c, err := dialDoor(one.Socket)
		if err == nil {
			if _, err = c.Write([]byte{doorFollow}); err != nil {
				_ = c.Close()
			}
		}
		switch {
		case err == nil:
			_ = c.SetDeadline(time.Time{})
			e.followed[one.Instance] = c
			read = append(read, func() { e.read(one.Instance, c, failed) })
		case e.before != "":
			e.lost = append(e.lost, one.Instance)
		}
		if err == nil && i == len(all)-1 {
			e.before = one.Instance
		}
	}
	return read
}

// read takes what another process tells, until it ends.
func (e *endings) read(instance string, c net.Conn, failed func(error)) {
	for b := make([]byte, maxPassed); ; {
		n, err := c.Read(b)
		if err != nil || n == 0 {
			break
		}
		var told news
		if err := json.Unmarshal(b[:n], &told); err != nil {
			failed(fmt.Errorf("read how a process has ended: %w", err))
			continue
		}
		switch {
		case !told.Complete:
			e.tell(told.ending)
		case instance == e.before:
			e.await(told.Open)
		}
	}
	_ = c.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	delete(e.followed, instance)
	died := []string{instance}
	if instance == e.before {
		died = append(died, e.lost...)
	}
	for _, one := range died {
		e.note(ending{Instance: one})
	}
}

// await takes the instances of which the process before may still tell. One whose door is closed may be
// ending, and is not among those that this process has asked. Of others there will be no news.
func (e *endings) await(open []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range slices.Clone(e.lost) {
		if !slices.Contains(open, one) {
			e.note(ending{Instance: one})
		}
	}
	for _, one := range open {
		if e.find(one) == nil && e.followed[one] == nil && !slices.Contains(e.lost, one) {
			e.lost = append(e.lost, one)
		}
	}
}

// tell notes how a process has ended, and passes it on.
func (e *endings) tell(told ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(told)
}

// note is tell for a caller that holds mu. The first news of a process counts.
func (e *endings) note(told ending) {
	if e.find(told.Instance) != nil {
		return
	}
	e.lost = slices.DeleteFunc(e.lost, func(one string) bool { return one == told.Instance })
	if len(e.known) >= maxEndings {
		e.known = slices.Delete(e.known, 0, 1)
	}
	e.known = append(e.known, told)
	e.followers = slices.DeleteFunc(e.followers, func(c *net.UnixConn) bool { return !send(c, news{ending: told}) })
}

func (e *endings) find(instance string) *ending {
	for i := range e.known {
		if e.known[i].Instance == instance {
			return &e.known[i]
		}
	}
	return nil
}

// send reports whether a follower still listens.
func send(c *net.UnixConn, told news) bool {
	b, err := json.Marshal(told)
	if err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(doorTime))
		_, err = c.Write(b)
	}
	if err != nil {
		_ = c.Close()
	}
	return err == nil
}

// admit takes a process that follows this one, and returns when that has ended.
func (e *endings) admit(c *net.UnixConn) {
	defer c.Close()
	if !e.enter(c) {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	_, _ = c.Read(make([]byte, 1)) // it says nothing more
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followers = slices.DeleteFunc(e.followers, func(one *net.UnixConn) bool { return one == c })
}

// enter is the part of admit until the process follows.
func (e *endings) enter(c *net.UnixConn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, told := range e.known {
		if !send(c, news{ending: told}) {
			return false
		}
	}
	open := append(slices.Collect(maps.Keys(e.followed)), e.lost...)
	if e.closed || !send(c, news{Complete: true, Open: open}) {
		return false
	}
	if len(e.followers) >= maxFollowers {
		_ = e.followers[0].Close()
		e.followers = slices.Delete(e.followers, 0, 1)
	}
	e.followers = append(e.followers, c)
	return true
}

// fate is what became of a process, as far as it concerns a session of a near relay, and the flows of it
// that are owed.
func (e *endings) fate(number uint64, near pair.NearSession) (fate pair.Fate, owed []byte) {
	instance := instanceText(number)
	e.mu.Lock()
	defer e.mu.Unlock()
	told := e.find(instance)
	switch {
	case told != nil && told.InOrder:
		return pair.FateOf(told.Owed, near)
	case told == nil && (e.followed[instance] != nil || slices.Contains(e.lost, instance)):
		return pair.FateOpen, nil
	}
	return pair.FateUnknown, nil
}

// wholePeers makes any flow of the peers count as owed.
func wholePeers(owed []pair.Owed) (peers []pair.Owed) {
	seen := map[string]bool{}
	for _, one := range owed {
		if !seen[one.Peer] {
			seen[one.Peer] = true
			peers = append(peers, pair.Owed{NearSession: pair.NearSession{Peer: one.Peer}})
		}
	}
	return peers
}

// close tells the followers of this process's end, if it had a node, and goes.
func (e *endings) close(node *pair.Node) {
	if node != nil {
		owed := node.Owed()
		if len(owed) > maxOwed {
			owed = wholePeers(owed)
		}
		if len(owed) <= maxOwed {
			e.tell(ending{Instance: instanceText(node.Instance()), InOrder: true, Owed: owed})
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, c := range e.followers {
		_ = c.Close()
	}
	for _, c := range e.followed {
		_ = c.Close()
	}
}
