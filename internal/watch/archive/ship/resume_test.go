package ship

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
)

// ledger is a place that says how far each epoch is, and may lose rows.
type ledger struct {
	mu   sync.Mutex
	rows map[int64]map[int64]bool
	more chan struct{} // has room for one
}

func (l *ledger) Deliver(_ context.Context, rows []archive.Row) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range rows {
		r := &rows[i]
		if l.rows[r.Epoch] == nil {
			l.rows[r.Epoch] = map[int64]bool{}
		}
		l.rows[r.Epoch][r.ID] = true
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
	return nil
}

func (l *ledger) Last(_ context.Context, epochs []int64) (map[int64]int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := map[int64]int64{}
	for _, e := range epochs {
		for id := range l.rows[e] {
			last[e] = max(last[e], id)
		}
	}
	return last, nil
}

func (l *ledger) Close() error { return nil }

// lose takes away all rows above an ID.
func (l *ledger) lose(above int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e, rows := range l.rows {
		for id := range rows {
			if id > above {
				delete(rows, id)
			}
		}
		if len(rows) == 0 {
			delete(l.rows, e)
		}
	}
}

// has waits until the place has n rows.
func (l *ledger) has(t *testing.T, n int) {
	t.Helper()
	for {
		l.mu.Lock()
		now := 0
		for _, rows := range l.rows {
			now += len(rows)
		}
		l.mu.Unlock()
		if now == n {
			return
		}
		<-l.more
	}
}

// What a place has lost goes again, of whatever epoch it is; what the history has not any more is
// counted as lost.
func TestPlaceThatLosesRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	l := &ledger{rows: map[int64]map[int64]bool{}, more: make(chan struct{}, 1)}
	maker := synthetic.NewMaker(1)
	// Each process ends 100 flows.
	process := func(rows int) State {
		t.Helper()
		store, err := history.Open(path, history.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		ships := New(store, Options{Relay: "relay-a", Open: func(archive.Target) (archive.Sink, error) { return l, nil }})
		defer ships.Close()
		ships.Set([]archive.Target{{Name: "ledger", To: "postgres://u@db.example.net/d"}})
		var records []monitor.Record
		for range 100 {
			records = append(records, maker.Record(time.Now()))
		}
		store.Add(records)
		l.has(t, rows)
		state := ships.States()[0]
		for ; state.Waiting > 0 || state.Shipped == 0; state = ships.States()[0] {
			<-time.After(10 * time.Millisecond)
		}
		if err := store.SaveCursors(t.Context()); err != nil {
			t.Fatal(err)
		}
		return state
	}
	process(100)
	process(200)
	l.lose(130)
	process(300)
	l.lose(40) // all of two epochs, and some of a third
	process(400)
	l.lose(30)
	gone(t, path, 50)
	if state := process(480); state.Lost != 20 {
		t.Errorf("%d records are lost, want 20", state.Lost)
	}
	l.lose(0)
	gone(t, path, 60) // of a place that has nothing of an epoch, it is not known what it had
	if state := process(540); state.Lost != 20 {
		t.Errorf("%d records are lost, want 20", state.Lost)
	}
}

// gone takes the oldest records out of a file.
func gone(t *testing.T, path string, upTo int64) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "DELETE FROM records WHERE id <= ?", upTo); err != nil {
		t.Fatal(err)
	}
}
