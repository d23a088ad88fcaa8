package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/pair"
)

// A process that has ended in order tells the processes that follow it: a near relay in an outage may
// have sent it an OPEN, and hears from them that it was never carried out. They ask for it at its door,
// each with a connection that stays open: one that ends without such news is that of a process that
// has died. A process also passes on what it hears of those before it, so that an upgrade loses none.

// Bounds of what a process keeps of others that have ended, and of who asks for it.
const (
	maxEndings   = 64
	maxFollowers = 64
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
	known     []ending             // in order, the latest last
	followed  map[string]*followed // by instance: those that have not ended
	before    string               // the instance of the process before this one, which knows of all before it
	second    []string             // instances of which that one may tell; of some of them this one hears only so
	heard     chan struct{}        // closed once that one has told what it knows
	followers []*net.UnixConn
	closed    bool
}

// followed is a process that tells its end.
type followed struct {
	conn *net.UnixConn
	over chan struct{} // closed once nobody reads any more
}

// unread reads the next message that waits in the socket. It returns nil if none waits.
func (f *followed) unread() (told []byte) {
	raw, err := f.conn.SyscallConn()
	if err != nil {
		return nil
	}
	b := make([]byte, maxPassed)
	_ = raw.Control(func(fd uintptr) {
		if n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); err == nil {
			told = b[:n]
		}
	})
	return told
}

// follow asks older processes, the oldest first, for their endings.
func (e *endings) follow(all []olderPair, failed func(error)) (read []func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followed, e.heard = map[string]*followed{}, make(chan struct{})
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
		if e.before != "" {
			e.second = append(e.second, one.Instance)
		}
		if err != nil {
			continue
		}
		_ = c.SetDeadline(time.Time{})
		f := &followed{c, make(chan struct{})}
		e.followed[one.Instance] = f
		read = append(read, func() { e.read(one.Instance, f, failed) })
		if i == len(all)-1 {
			e.before = one.Instance
		}
	}
	if e.before == "" {
		close(e.heard)
	}
	return read
}

// hear waits until the process before has told what it knows. It ends once this process serves, and need
// not look at its door before.
func (e *endings) hear() {
	select {
	case <-e.heard:
	case <-time.After(doorTime):
	}
}

// read takes what another process tells, until it ends.
func (e *endings) read(instance string, f *followed, failed func(error)) {
	defer close(f.over)
	for b := make([]byte, maxPassed); ; {
		n, err := f.conn.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) { // close reads on
			return
		}
		if err != nil || n == 0 {
			break
		}
		if err := e.take(instance, b[:n]); err != nil {
			failed(err)
		}
	}
	_ = f.conn.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	delete(e.followed, instance)
	if instance == e.before {
		e.hearFrom(nil)
	}
	e.concludeFor(instance)
}

// take takes a message of another process.
func (e *endings) take(instance string, message []byte) error {
	var told news
	if err := json.Unmarshal(message, &told); err != nil {
		return fmt.Errorf("read how a process has ended: %w", err)
	}
	switch {
	case !told.Complete:
		e.tell(told.ending)
	case instance == e.before:
		e.await(told.Open)
	}
	return nil
}

// await takes the instances of which the process before may still tell. One whose door is closed may be
// ending, and is not among those that this process has asked.
func (e *endings) await(open []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hearFrom(open)
}

// hasHeard reports whether the process before, if there is one, has told what it knows. The caller holds
// mu.
func (e *endings) hasHeard() bool {
	select {
	case <-e.heard:
		return true
	default:
		return e.heard == nil // it follows none
	}
}

// hearFrom sets the instances of which the process before may still tell.
func (e *endings) hearFrom(open []string) {
	if !e.hasHeard() {
		close(e.heard)
	}
	was := e.second
	e.second = slices.DeleteFunc(slices.Clone(open), func(one string) bool { return e.find(one) != nil })
	for _, one := range was {
		e.concludeFor(one)
	}
}

// concludeFor passes on that a process has died if nobody is left to tell how it has ended.
func (e *endings) concludeFor(instance string) {
	if !e.mayHear(instance) && e.find(instance) == nil {
		e.pass(ending{Instance: instance})
	}
}

// mayHear reports whether there may be news of a process. The caller holds mu.
func (e *endings) mayHear(instance string) bool {
	return e.followed[instance] != nil || slices.Contains(e.second, instance)
}

// tell notes how a process has ended, and passes it on.
func (e *endings) tell(told ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(told)
}

// note is tell for a caller that holds mu. Of one that has died nothing is kept: that is the fate of all
// that are not known.
func (e *endings) note(told ending) {
	e.second = slices.DeleteFunc(e.second, func(one string) bool { return one == told.Instance })
	switch {
	case e.find(told.Instance) != nil:
		return
	case told.InOrder:
		if len(e.known) >= maxEndings {
			e.known = slices.Delete(e.known, 0, 1)
		}
		e.known = append(e.known, told)
	case e.mayHear(told.Instance): // from itself
		return
	}
	e.pass(told)
}

// pass has the followers know. The caller holds mu.
func (e *endings) pass(told ending) {
	e.followers = slices.DeleteFunc(e.followers, func(c *net.UnixConn) bool { return !send(c, news{ending: told}) })
}

// living are those of other processes that may not have ended.
func (e *endings) living(all []olderPair) []olderPair {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(all, func(one olderPair) bool {
		return one.Tells && (!e.mayHear(one.Instance) || e.find(one.Instance) != nil)
	})
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
	open := slices.Compact(slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(e.followed)), e.second...))))
	if e.closed || len(e.followers) >= maxFollowers || !send(c, news{Complete: true, Open: open}) {
		return false
	}
	e.followers = append(e.followers, c)
	return true
}

// fate is what became of a process, as far as it concerns a session of a near relay, and the flows of it
// that are owed.
func (e *endings) fate(number uint64, near pair.NearSession) (fate pair.Fate, owed []byte) {
	instance := pair.NumberText(number)
	e.mu.Lock()
	defer e.mu.Unlock()
	told := e.find(instance)
	switch {
	case told != nil:
		return pair.FateOf(told.Owed, near)
	case !e.hasHeard() || e.mayHear(instance):
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

// close tells the followers of this process's end, if it had a node, and goes. What older processes have
// told is passed on before: they may be gone, so a follower hears it from here or never.
func (e *endings) close(node *pair.Node) {
	e.mu.Lock()
	followed := maps.Clone(e.followed)
	e.mu.Unlock()
	for instance, f := range followed {
		_ = f.conn.SetReadDeadline(time.Unix(1, 0))
		<-f.over
		for message := f.unread(); len(message) > 0; message = f.unread() {
			_ = e.take(instance, message)
		}
	}
	if node != nil {
		owed := node.Owed()
		if len(owed) > maxOwed {
			owed = wholePeers(owed)
		}
		if len(owed) <= maxOwed {
			e.tell(ending{Instance: pair.NumberText(node.Instance()), InOrder: true, Owed: owed})
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, c := range e.followers {
		_ = c.Close()
	}
	for _, f := range e.followed {
		_ = f.conn.Close()
	}
}
