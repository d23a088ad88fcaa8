package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/carry/pair"
	"longhaul/test/nettest"
)

// told is a process that others ask for endings, at a door.
type told struct {
	endings
	olderPair
}

var lastDoor atomic.Int64

func tells(t *testing.T, instance uint64) *told {
	t.Helper()
	name := fmt.Sprintf("@longhaul-test-%s-%d", pair.NumberText(instance), lastDoor.Add(1))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	nettest.Must(t, err)
	one := &told{olderPair: olderPair{pair.NumberText(instance), name, true}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if _, _, err := receivePassed(c); err != nil {
				t.Error(err)
			}
			running.Go(func() { one.admit(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		one.close(nil)
		running.Wait()
	})
	return one
}

// TestCloseWithoutPairs holds that a process whose configuration has no pairs, or whose start failed,
// ends before the one that it follows.
func TestCloseWithoutPairs(t *testing.T) {
	older := tells(t, 1)
	p := newPairs(slog.New(slog.DiscardHandler), "test", t.TempDir, nil, nil)
	p.follow([]olderPair{older.olderPair}, nil)
	done := make(chan struct{})
	go func() {
		p.close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it waits for the end of the older process")
	}
}

// follower is a process that follows others.
type follower struct {
	endings
	readers sync.WaitGroup
}

func follows(t *testing.T, all ...*told) *follower {
	var older []olderPair
	for _, one := range all {
		older = append(older, one.olderPair)
	}
	f := &follower{}
	for _, read := range f.follow(older, func(err error) { t.Error(err) }) {
		f.readers.Go(read)
	}
	return f
}

func (f *follower) end() {
	f.close(nil)
	f.readers.Wait()
}

// awaitFate waits until a process knows what became of another one.
func (e *endings) awaitFate(t *testing.T, instance uint64, want pair.Fate) {
	t.Helper()
	fate := func() pair.Fate {
		fate, _ := e.fate(instance, pair.NearSession{Peer: "peer", Instance: 5, Session: 6})
		return fate
	}
	nettest.Eventually(t, time.Minute, func() bool { return fate() == want },
		func() string { return fmt.Sprintf("the fate is %v, and not %v", fate(), want) })
}

// has waits until so many processes follow this one.
func (o *told) has(t *testing.T, want int) {
	t.Helper()
	nettest.Eventually(t, time.Minute, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.followers) == want
	}, func() string { return fmt.Sprintf("not %d followers", want) })
}

// TestFollowersThatFailed holds that processes whose start failed take no place of the one that serves.
func TestFollowersThatFailed(t *testing.T) {
	older := tells(t, 1)
	serves := follows(t, older)
	defer serves.end()
	older.has(t, 1)
	for range 2 * maxFollowers {
		failed := follows(t, older)
		older.has(t, 2)
		failed.end()
		older.has(t, 1)
	}
	serves.awaitFate(t, 1, pair.FateOpen)
	older.tell(ending{Instance: older.Instance, InOrder: true})
	serves.awaitFate(t, 1, pair.FateInOrder)
}

// TestFateOfOneThatIsLost holds that what became of a process without a door is open only while the
// process before may tell it.
func TestFateOfOneThatIsLost(t *testing.T) {
	lost := &told{olderPair: olderPair{pair.NumberText(1), "@longhaul-test-none", true}}
	before := tells(t, 2)
	before.mu.Lock()
	before.second = []string{lost.Instance}
	before.mu.Unlock()
	early := follows(t, lost, before)
	defer early.end()
	early.awaitFate(t, 1, pair.FateOpen)
	unaware := follows(t, before) // its door was closed before this one began
	defer unaware.end()
	unaware.awaitFate(t, 1, pair.FateOpen)
	before.tell(ending{Instance: lost.Instance, InOrder: true})
	early.awaitFate(t, 1, pair.FateInOrder)
	unaware.awaitFate(t, 1, pair.FateInOrder)
	for i := range uint64(maxEndings) { // more than it keeps
		before.tell(ending{Instance: pair.NumberText(i + 10), InOrder: true})
	}
	late := follows(t, lost, before)
	defer late.end()
	late.awaitFate(t, 1, pair.FateUnknown)
	late.awaitFate(t, 2, pair.FateOpen)
}

// TestOwedFlowsArePassedOn holds that a process knows what one that ended before the process before it
// owed, by session.
func TestOwedFlowsArePassedOn(t *testing.T) {
	session := func(peer string, number uint64) pair.NearSession {
		return pair.NearSession{Peer: peer, Instance: 1<<63 + 1, Session: number}
	}
	first, second := tells(t, 1), tells(t, 2)
	for _, read := range second.follow([]olderPair{first.olderPair}, func(err error) { t.Error(err) }) {
		go read()
	}
	third := follows(t, first, second)
	defer third.end()
	owed := []pair.Owed{{NearSession: session("some", 1), Flows: []byte{3, 0x80 | 5, 1}}, {NearSession: session("any", 1)}, {NearSession: pair.NearSession{Peer: "lost"}}}
	first.tell(ending{Instance: first.Instance, InOrder: true, Owed: owed})
	second.awaitFate(t, 1, pair.FateInOrder)
	third.awaitFate(t, 1, pair.FateInOrder)
	late := follows(t, second) // it hears of the first one by the second
	defer late.end()
	late.awaitFate(t, 1, pair.FateInOrder)
	for _, e := range []*endings{&second.endings, &third.endings, &late.endings} {
		for _, c := range []struct {
			near  pair.NearSession
			want  pair.Fate
			flows string
		}{
			{session("some", 1), pair.FateInOrder, "\x03\x85\x01"},
			{session("some", 2), pair.FateInOrder, ""},
			{session("any", 1), pair.FateUnknown, ""},
			{session("any", 2), pair.FateInOrder, ""},
			{session("lost", 7), pair.FateUnknown, ""},
		} {
			if fate, flows := e.fate(1, c.near); fate != c.want || string(flows) != c.flows {
				t.Errorf("for %v the fate is %v, and %q are owed", c.near, fate, flows)
			}
		}
	}
}

// TestLastWordsArePassedOn holds that a process that ends passes on what it was told and has not read, to
// one that found the door of the teller closed, or was not let in before it closed.
func TestLastWordsArePassedOn(t *testing.T) {
	first, second := tells(t, 1), tells(t, 2)
	second.follow([]olderPair{first.olderPair}, nil)
	close(second.followed[first.Instance].over) // it has read nothing
	first.has(t, 1)
	gone := &told{olderPair: olderPair{first.Instance, "@longhaul-test-none", true}}
	third := follows(t, gone, second)
	defer third.end()
	third.hear()

	unheard := tells(t, 1) // lets fourth in, and ends without a word
	unheard.mu.Lock()
	unheard.closed = true
	unheard.mu.Unlock()
	fourth := follows(t, unheard, second)
	defer fourth.end()
	fourth.hear()

	first.tell(ending{Instance: first.Instance, InOrder: true})
	first.close(nil)
	second.close(nil)
	third.awaitFate(t, 1, pair.FateInOrder)
	fourth.awaitFate(t, 1, pair.FateInOrder)
}

// TestManyUpgrades holds that the latest process knows how the last ones before it have ended, however many
// there were, and asks only those that live.
func TestManyUpgrades(t *testing.T) {
	stays, before := tells(t, 1), tells(t, 2)
	var running sync.WaitGroup
	defer running.Wait()
	older := []olderPair{stays.olderPair, before.olderPair}
	const first, last = 3, 3 + maxEndings + 8
	for instance := uint64(first); instance <= last; instance++ {
		next := tells(t, instance)
		for _, read := range next.follow(older, func(err error) { t.Error(err) }) {
			running.Go(read)
		}
		next.hear()
		before.tell(ending{Instance: before.Instance, InOrder: true})
		before.close(nil)
		next.awaitFate(t, instance-1, pair.FateInOrder)
		if older = append(next.living(older), next.olderPair); len(older) != 2 {
			t.Fatalf("upgrade %d leaves %d processes to ask", instance, len(older))
		}
		before = next
	}
	before.awaitFate(t, 1, pair.FateOpen)
	for instance := uint64(last - maxEndings); instance < last; instance++ {
		before.awaitFate(t, instance, pair.FateInOrder)
	}
	before.close(nil)
}

// TestWholePeers holds what a message has whose sessions would be too many.
func TestWholePeers(t *testing.T) {
	var owed []pair.Owed
	for session := range uint64(2 * maxOwed) {
		owed = append(owed, pair.Owed{NearSession: pair.NearSession{Peer: []string{"a", "b"}[session%2], Instance: 1, Session: session}, Flows: []byte{1}})
	}
	owed = wholePeers(owed)
	if len(owed) != 2 {
		t.Fatalf("%d entries for two peers", len(owed))
	}
	for peer, want := range map[string]pair.Fate{"a": pair.FateUnknown, "b": pair.FateUnknown, "c": pair.FateInOrder} {
		if fate, _ := pair.FateOf(owed, pair.NearSession{Peer: peer, Instance: 1, Session: 1}); fate != want {
			t.Errorf("for peer %s the fate is %v", peer, fate)
		}
	}
}
