package ship

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
)

// stuck is a sink that does not listen to its context. Calls return when go is closed.
type stuck struct {
	begun   chan struct{} // has room for one
	release chan struct{}
	opened  *atomic.Int32 // sinks that are open
	got     *atomic.Int64 // records
}

func (s *stuck) Deliver(_ context.Context, rows []archive.Row) error {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.release
	s.got.Add(int64(len(rows)))
	return nil
}

func (s *stuck) Close() error { s.opened.Add(-1); return nil }

// A sink that ignores its context holds up neither Set nor Close nor the states, and is alone: no
// other one is opened beside it.
func TestSinkThatHangs(t *testing.T) {
	store, err := history.Open(filepath.Join(t.TempDir(), "history.db"), history.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := &stuck{begun: make(chan struct{}, 1), release: make(chan struct{}), opened: new(atomic.Int32), got: new(atomic.Int64)}
	opened := atomic.Int32{}
	ships := New(store, Options{patience: time.Millisecond, Open: func(archive.Target) (archive.Sink, error) {
		opened.Add(1)
		s.opened.Add(1)
		return s, nil
	}})
	first := archive.Target{Name: "place", To: "https://a.example.net/"}
	ships.Set([]archive.Target{first})
	store.Add([]monitor.Record{synthetic.NewMaker(1).Record(time.Now())})
	<-s.begun
	until := func(so func(State) bool) {
		t.Helper()
		for !so(ships.States()[0]) {
			<-time.After(10 * time.Millisecond)
		}
	}
	until(func(s State) bool { return s.Problem == errHangs.Error() && s.Remedy != "" && s.Waiting == 1 })
	second := first
	second.To = "https://b.example.net/"
	ships.Set([]archive.Target{second}) // returns
	ships.Set([]archive.Target{first})
	until(func(s State) bool { return s.Problem != "" })
	if n := opened.Load(); n > 2 {
		t.Errorf("%d sinks were opened beside one that hangs", n)
	}
	ships.Close() // returns
	if n := s.opened.Load(); n == 0 {
		t.Error("a sink that hangs was closed meanwhile")
	}
	close(s.release)
	for s.opened.Load() > 0 { // once it has returned
		<-time.After(10 * time.Millisecond)
	}
}

// A file that takes no more within the time gets fewer records at once.
func TestSlowPathGetsSmallBatches(t *testing.T) {
	store, err := history.Open(filepath.Join(t.TempDir(), "history.db"), history.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	slow := slowSink{done: make(chan int, 1)}
	ships := New(store, Options{patience: 10 * time.Millisecond, Open: func(archive.Target) (archive.Sink, error) { return slow, nil }})
	defer ships.Close()
	var records []monitor.Record
	maker := synthetic.NewMaker(1)
	for range 500 {
		records = append(records, maker.Record(time.Now()))
	}
	store.Add(records)
	ships.Set([]archive.Target{{To: "https://a.example.net/"}})
	if n := <-slow.done; n > slowest {
		t.Errorf("%d records were delivered at once", n)
	}
}

const slowest = 200

// slowSink takes no more than some records in time.
type slowSink struct{ done chan int }

func (s slowSink) Deliver(ctx context.Context, rows []archive.Row) error {
	if len(rows) > slowest {
		<-ctx.Done()
		return errors.New("cut off")
	}
	select {
	case s.done <- len(rows):
	default:
	}
	return nil
}

func (slowSink) Close() error { return nil }

// What a file had that is gone is lost, and counted; the sink gets what the next file has.
func TestFileSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	store, err := history.Open(path, history.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	down := errors.New("down")
	sink := &switched{err: down}
	ships := New(store, Options{Open: func(archive.Target) (archive.Sink, error) { return sink, nil }})
	defer ships.Close()
	maker := synthetic.NewMaker(1)
	add := func(n int) {
		var records []monitor.Record
		for range n {
			records = append(records, maker.Record(time.Now()))
		}
		store.Add(records)
	}
	add(7)
	ships.Set([]archive.Target{{To: "https://a.example.net/"}})
	until := func(what string, so func(State) bool) {
		t.Helper()
		for s := ships.States()[0]; !so(s); s = ships.States()[0] {
			<-time.After(10 * time.Millisecond)
		}
	}
	until("seven wait", func(s State) bool { return s.Waiting == 7 })
	remove(t, path)
	add(3)
	until("the seven are lost", func(s State) bool { return s.Waiting == 3 && s.Lost == 7 })
	sink.set(nil)
	until("the three are shipped", func(s State) bool { return s.Shipped == 3 && s.Waiting == 0 && s.Lost == 7 && s.Problem == "" })
	if s := store.State(); s.Dropped > 0 {
		t.Errorf("%+v", s)
	}
}

// remove takes a history's file away.
func remove(t *testing.T, path string) {
	t.Helper()
	for _, end := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + end); err != nil {
			t.Fatal(err)
		}
	}
}

// switched is a sink that takes everything, or nothing.
type switched struct {
	mu  sync.Mutex
	err error
}

func (s *switched) set(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
}

func (s *switched) Deliver(context.Context, []archive.Row) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *switched) Close() error { return nil }

// A sink that was taken away and comes again goes on where it was.
func TestSinkComesAgain(t *testing.T) {
	store, err := history.Open(filepath.Join(t.TempDir(), "history.db"), history.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	got := make(chan int64, 100)
	ships := New(store, Options{Open: func(archive.Target) (archive.Sink, error) { return teller(got), nil }})
	defer ships.Close()
	maker := synthetic.NewMaker(1)
	for n := range int64(4) {
		store.Add([]monitor.Record{maker.Record(time.Now())})
		ships.Set([]archive.Target{{Name: "a", To: "https://a.example.net/"}})
		if id := <-got; id != n+1 {
			t.Fatalf("the sink gets record %d, not %d", id, n+1)
		}
		ships.Set(nil)
	}
}

// teller sends the IDs of records.
type teller chan int64

func (c teller) Deliver(_ context.Context, rows []archive.Row) error {
	for i := range rows {
		c <- rows[i].ID
	}
	return nil
}

func (c teller) Close() error { return nil }
