package ship_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/internal/words/remedy"
)

// place keeps rows by their keys, and refuses at times, also after it has kept them.
type place struct {
	mu     sync.Mutex
	random *rand.Rand
	down   bool
	rows   map[[2]int64]archive.Row
	again  int
	more   chan struct{} // has room for one
}

func newPlace(seed uint64) *place {
	return &place{random: rand.New(rand.NewPCG(seed, 0)), rows: map[[2]int64]archive.Row{}, more: make(chan struct{}, 1)}
}

var errDown = remedy.New(errors.New("the place is closed"), "open it")

func (p *place) Deliver(_ context.Context, rows []archive.Row) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || p.random.IntN(4) == 0 {
		return errDown
	}
	for _, r := range rows {
		key := [2]int64{r.Epoch, r.ID}
		if _, has := p.rows[key]; has {
			p.again++
		}
		p.rows[key] = r
	}
	select {
	case p.more <- struct{}{}:
	default:
	}
	if p.random.IntN(4) == 0 {
		return errDown
	}
	return nil
}

func (p *place) Close() error { return nil }

func (p *place) setDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
}

// has waits until the place has n rows.
func (p *place) has(t *testing.T, n int) {
	t.Helper()
	for {
		p.mu.Lock()
		now := len(p.rows)
		p.mu.Unlock()
		if now >= n {
			if now > n {
				t.Fatalf("%d rows of %d records", now, n)
			}
			return
		}
		<-p.more
	}
}

func open(t *testing.T, path string, p *place) (*history.Store, *ship.Shippers) {
	t.Helper()
	store, err := history.Open(path, history.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ships := ship.New(store, ship.Options{
		Relay: "relay-a", Site: "site-a",
		Open: func(archive.Target) (archive.Sink, error) { return p, nil },
	})
	return store, ships
}

// Each record arrives, whatever fails and however often the process begins again.
func TestEachRecordArrives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	p := newPlace(1)
	maker := synthetic.NewMaker(1)
	target := archive.Target{Name: "place", To: "https://place.example.net/", Kind: archive.JSONRows, Clients: archive.TruncatedClients}
	all := 0
	for range 4 {
		store, ships := open(t, path, p)
		ships.Set([]archive.Target{target})
		var records []monitor.Record
		for range 700 {
			records = append(records, maker.Record(time.Now()))
		}
		store.Add(records)
		ships.Close() // at any moment
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		all += len(records)
	}
	store, ships := open(t, path, p)
	defer store.Close()
	defer ships.Close()
	ships.Set([]archive.Target{target})
	p.has(t, all)
	epochs := map[int64]bool{}
	for key, r := range p.rows {
		epochs[key[0]] = true
		if r.Relay != "relay-a.example.net" || r.OwnSite != "site-a" || r.Clients != archive.TruncatedClients {
			t.Fatalf("%+v", r)
		}
	}
	if len(epochs) < 4 {
		t.Errorf("%d epochs", len(epochs))
	}
}

func TestStatesTellOfASinkThatIsDown(t *testing.T) {
	p := newPlace(2)
	p.setDown(true)
	store, ships := open(t, filepath.Join(t.TempDir(), "history.db"), p)
	defer store.Close()
	defer ships.Close()
	ships.Set([]archive.Target{{To: "https://place.example.net/", Kind: archive.JSONRows}})
	begun := time.Now()
	store.Add([]monitor.Record{synthetic.NewMaker(1).Record(begun)})
	var s ship.State
	for ; s.Problem == ""; s = ships.States()[0] {
		<-time.After(10 * time.Millisecond)
	}
	if s.Sink != "https://place.example.net/" || s.Problem != "the place is closed" || s.Remedy != "open it" || s.Waiting != 1 || s.Lag <= 0 || s.Shipped != 0 {
		t.Errorf("%+v", s)
	}
	p.setDown(false)
	p.has(t, 1)
	for ; s.Problem != ""; s = ships.States()[0] {
		<-time.After(10 * time.Millisecond)
	}
	if s.Waiting != 0 || s.Lag != 0 || s.Shipped != 1 || s.LastSent.IsZero() {
		t.Errorf("%+v", s)
	}
	ships.Set(nil)
	if all := ships.States(); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// After a file is restored from a backup, its sink gets what the backup has more, and each new record,
// though their IDs were given before. The state says what waits, and that nothing is lost.
func TestRestoredFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history.db")
	p := newPlace(3)
	maker := synthetic.NewMaker(1)
	target := archive.Target{To: "https://place.example.net/", Kind: archive.JSONRows}
	add := func(store *history.Store, n int) {
		var records []monitor.Record
		for range n {
			records = append(records, maker.Record(time.Now()))
		}
		store.Add(records)
	}
	until := func(ships *ship.Shippers, so func(ship.State) bool) {
		for s := ships.States()[0]; !so(s); s = ships.States()[0] {
			<-time.After(10 * time.Millisecond)
		}
	}
	end := func(store *history.Store, ships *ship.Shippers) {
		t.Helper()
		ships.Close()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	store, ships := open(t, path, p)
	ships.Set([]archive.Target{target})
	add(store, 5)
	p.has(t, 5)
	end(store, ships)
	backup, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	store, ships = open(t, path, p)
	ships.Set([]archive.Target{target})
	add(store, 4)
	p.has(t, 9)
	end(store, ships)
	for _, log := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + log); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, backup, 0o600); err != nil {
		t.Fatal(err)
	}
	p.setDown(true)
	store, ships = open(t, path, p)
	ships.Set([]archive.Target{target})
	add(store, 3)
	until(ships, func(s ship.State) bool { return s.Waiting >= 3 && s.Problem != "" })
	if s := ships.States()[0]; s.Lost != 0 || s.Lag <= 0 || !s.LastSent.IsZero() {
		t.Errorf("%+v", s)
	}
	p.setDown(false)
	p.has(t, 12)
	until(ships, func(s ship.State) bool { return s.Waiting == 0 && s.Problem == "" })
	if s := ships.States()[0]; s.Lost != 0 || s.Lag != 0 {
		t.Errorf("%+v", s)
	}
	end(store, ships)
}
