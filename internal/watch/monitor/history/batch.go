package history

import (
	"database/sql"
	"errors"
	"time"

	"longhaul/internal/watch/monitor"
)

// write puts the batch into the file, all of it or nothing.
func (w *writer) write() error {
	events, cursors := w.eventsWaiting(), w.cursorsWaiting()
	if len(w.batch) == 0 && len(events) == 0 && len(cursors) == 0 && w.fits == w.maxBytes.Load() && !w.clock.due(w.opts.now()) {
		return nil
	}
	if err := w.roomInLog(); err != nil {
		return err
	}
	words := make(map[string]int64) // new ones are known once they are in the file
	err := w.db.transact(background, func() error {
		if _, err := w.db.version(background); err != nil {
			return err // a newer process has changed the file
		}
		if len(w.batch) > 0 {
			if err := w.insert(words); err != nil {
				return err
			}
		}
		if err := w.insertEvents(events); err != nil {
			return err
		}
		if err := w.writeCursors(cursors); err != nil {
			return err
		}
		return w.prune()
	})
	if err != nil {
		w.segment.last = 0 // it is not in the file
		return err
	}
	w.eventsWritten(len(events))
	w.cursorsWritten(cursors)
	for word, id := range words {
		w.words[word] = id
	}
	file, wal := size(w.path)
	w.mu.Lock()
	w.state.Written += int64(len(w.batch))
	w.state.Bytes = file + wal
	w.mu.Unlock()
	if len(w.batch) > 0 {
		w.tellChanged()
	}
	w.emptyBatch()
	return nil
}

// insert is the part of the transaction that adds the batch.
func (w *writer) insert(words map[string]int64) error {
	conn := w.db.conn
	var last int64
	err := conn.QueryRowContext(background,
		"SELECT max(last_id, (SELECT ifnull(max(id), 0) FROM records)) FROM state").Scan(&last)
	if err != nil {
		return err
	}
	first := last + 1
	intern := func(word string) (int64, error) { return w.intern(word, words) }
	if err := w.reopenSegment(first); err != nil {
		return err
	}
	sums := newSums()
	values := make([]any, 0, min(len(w.batch), segmentLen)*recordLen)
	for i := range w.batch {
		last++
		var f facts
		if values, f, err = recordValues(values, &w.batch[i], last, intern); err != nil {
			return err
		}
		sums.add(&w.batch[i], &f)
		w.segment.facts = append(w.segment.facts, f)
		if last%segmentLen == 0 {
			if err := insertRecords(conn, values); err != nil {
				return err
			}
			values = values[:0]
			if err := closeSegment(conn, w.segment.facts); err != nil {
				return err
			}
			w.segment.facts = w.segment.facts[:0]
		}
	}
	if err := insertRecords(conn, values); err != nil {
		return err
	}
	if err := sums.store(conn); err != nil {
		return err
	}
	_, err = conn.ExecContext(background, "UPDATE state SET last_id = ?", last)
	w.segment.last = last
	return err
}

// openSegment is the one that is not full yet: the facts of its records up to
// the ID last, as they are in the file. 0: nothing is known of it.
type openSegment struct {
	last  int64
	facts []facts
}

// reopenSegment sees that the facts of the segment are known into which the
// record first will come: another process may have written, or a transaction
// has failed.
func (w *writer) reopenSegment(first int64) error {
	last := w.segment.last
	w.segment.last = 0 // until the transaction is over
	if last == first-1 && last > 0 {
		return nil
	}
	w.segment.facts = w.segment.facts[:0]
	return factsBetween(w.db.conn, floor(first-1, segmentLen), first-1, func(f *facts) {
		w.segment.facts = append(w.segment.facts, *f)
	})
}

// knownWord is one that is in the file.
type knownWord struct {
	word string
	id   int64
}

// intern is the ID of a word; the empty one has 0.
func (w *writer) intern(word string, added map[string]int64) (int64, error) {
	if word == "" {
		return 0, nil
	}
	if len(word) > maxError {
		word = word[:maxError]
	}
	recent := &w.recent[(len(word)+int(word[0])+7*int(word[len(word)-1]))%len(w.recent)]
	if recent.word == word { // mostly the same string: no byte of it is compared
		return recent.id, nil
	}
	if id := w.words[word]; id != 0 {
		*recent = knownWord{word, id}
		return id, nil
	}
	if id := added[word]; id != 0 {
		return id, nil
	}
	var id int64
	err := w.db.conn.QueryRowContext(background, "SELECT id FROM words WHERE word = ?", word).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		var result sql.Result
		if result, err = w.db.conn.ExecContext(background, "INSERT INTO words (word) VALUES (?)", word); err == nil {
			id, err = result.LastInsertId()
		}
	}
	if err != nil {
		return 0, err
	}
	added[word] = id
	return id, nil
}

// closeSegment writes the digest of a segment's records.
func closeSegment(conn *sql.Conn, all []facts) error {
	last := all[len(all)-1].id
	var records int
	err := conn.QueryRowContext(background,
		"SELECT count(*) FROM records WHERE id > ? AND id <= ?", last-segmentLen, last).Scan(&records)
	if err == nil && records != len(all) { // another process has deleted some, for their age
		all = all[:0:0]
		err = factsBetween(conn, last-segmentLen, last, func(f *facts) { all = append(all, *f) })
	}
	if err != nil {
		return err
	}
	least, most := all[0].endMs, all[0].endMs
	for _, f := range all {
		least, most = min(least, f.endMs), max(most, f.endMs)
	}
	e := newExtremes(all)
	_, err = conn.ExecContext(background, `INSERT INTO segments
		(last, records, min_end_ms, max_end_ms, max_elapsed_us, max_bytes, min_goodput_bps, max_retransmitted, digest) VALUES (?,?,?,?,?,?,?,?,?)`,
		last, len(all), least, most, e.elapsedUs, e.bytes, e.leastGoodput, e.retrans, encodeDigest(all))
	return err
}

// sums are what a batch adds to the minutes and hours.
type sums struct {
	minutes, hours slots
	ended          map[slot]*aggregate // by hour
	lastEnded      slot                // of the flow before, as many end in the same hour
	aggregate      *aggregate
}

// slots are what was carried. Most flows fall into the slot of the one before.
type slots struct {
	all  map[slot]*carried
	last slot
	now  *carried
}

func (s *slots) at(key slot) *carried {
	if s.now == nil || s.last != key {
		s.last, s.now = key, s.all[key]
		if s.now == nil {
			s.now = new(carried)
			s.all[key] = s.now
		}
	}
	return s.now
}

// slot is a stretch of time of a tunnel.
type slot struct {
	at     int64 // Unix seconds of its beginning
	tunnel int64
}

type carried struct{ up, down float64 }

func newSums() *sums {
	return &sums{minutes: slots{all: map[slot]*carried{}}, hours: slots{all: map[slot]*carried{}}, ended: map[slot]*aggregate{}}
}

const (
	minute = int64(60)
	hour   = int64(3600)
)

// floor is the multiple of step at or before at.
func floor(at, step int64) int64 {
	if rest := at % step; rest < 0 {
		return at - rest - step
	} else {
		return at - rest
	}
}

func (s *sums) add(r *monitor.Record, f *facts) {
	ended := slot{floor(f.endMs/1000, hour), f.group.tunnel}
	if s.aggregate == nil || s.lastEnded != ended {
		if s.ended[ended] == nil {
			s.ended[ended] = newAggregate(coarse)
		}
		s.lastEnded, s.aggregate = ended, s.ended[ended]
	}
	s.aggregate.add(f, 1)
	s.spread(r, f)
}

// spread lays a flow's bytes over its life, as its series has it.
func (s *sums) spread(r *monitor.Record, f *facts) {
	if f.up+f.down == 0 {
		return
	}
	end := float64(f.endMs) / 1000
	life := float64(f.elapsedUs) / 1e6
	begin := end - life
	up, upSum := r.Goodput.UpBps, sum(r.Goodput.UpBps)
	down, downSum := r.Goodput.DownBps, sum(r.Goodput.DownBps)
	n := max(len(up), len(down))
	step := r.Goodput.Step.Seconds()
	if n == 0 || step <= 0 || upSum+downSum <= 0 {
		// Evenly, for want of anything better.
		s.lay(f.group.tunnel, begin, end, float64(f.up), float64(f.down))
		return
	}
	for i := range n {
		from := begin + float64(i)*step
		to := min(from+step, end)
		var u, d float64
		if i < len(up) && upSum > 0 {
			u = float64(f.up) * float64(up[i]) / upSum
		}
		if i < len(down) && downSum > 0 {
			d = float64(f.down) * float64(down[i]) / downSum
		}
		if u > 0 || d > 0 {
			s.lay(f.group.tunnel, min(from, end), max(to, min(from, end)), u, d)
		}
	}
	// What a series does not know of was carried at some time in its life.
	var u, d float64
	if upSum <= 0 {
		u = float64(f.up)
	}
	if downSum <= 0 {
		d = float64(f.down)
	}
	if u+d > 0 {
		s.lay(f.group.tunnel, begin, end, u, d)
	}
}

func sum(values []float32) float64 {
	var all float64
	for _, v := range values {
		all += float64(v)
	}
	return all
}

// lay adds bytes to the minutes and hours from one moment to another.
func (s *sums) lay(tunnel int64, from, to, up, down float64) {
	for _, into := range []struct {
		slots *slots
		step  int64
		keep  float64 // how far back there is any use in it
	}{{&s.minutes, minute, minutesKept.Seconds()}, {&s.hours, hour, maxLife.Seconds()}} {
		from, up, down := from, up, down
		if life := to - from; life > into.keep {
			share := into.keep / life
			from, up, down = to-into.keep, up*share, down*share
		}
		for at := floor(int64(from), into.step); ; at += into.step {
			share := 1.0
			if to > from {
				share = (min(to, float64(at+into.step)) - max(from, float64(at))) / (to - from)
			}
			if share > 0 {
				c := into.slots.at(slot{at, tunnel})
				c.up += up * share
				c.down += down * share
			}
			if float64(at+into.step) >= to {
				break
			}
		}
	}
}

// What is kept of the summaries, and how long a flow's life may be to be laid
// over hours.
const (
	minutesKept = 7 * 24 * time.Hour
	maxMinutes  = 100_000 // rows
	maxLife     = 366 * 24 * time.Hour
)

// store adds the sums to those in the file.
func (s *sums) store(conn *sql.Conn) error {
	for _, table := range []struct {
		name  string
		slots map[slot]*carried
	}{{"minutes", s.minutes.all}, {"hours", s.hours.all}} {
		add, err := conn.PrepareContext(background, "INSERT INTO "+table.name+` (at, tunnel, bytes_up, bytes_down) VALUES (?1, ?2, ?3, ?4)
			ON CONFLICT DO UPDATE SET bytes_up = bytes_up + ?3, bytes_down = bytes_down + ?4`)
		if err != nil {
			return err
		}
		for key, c := range table.slots {
			if _, err := add.ExecContext(background, key.at, key.tunnel, int64(c.up+.5), int64(c.down+.5)); err != nil {
				add.Close()
				return err
			}
		}
		add.Close()
	}
	for key, a := range s.ended {
		var stored []byte
		err := conn.QueryRowContext(background, "SELECT ended FROM hours WHERE at = ? AND tunnel = ?", key.at, key.tunnel).Scan(&stored)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if stored != nil {
			if err := a.read(stored); err != nil {
				return err
			}
		}
		if _, err := conn.ExecContext(background, `INSERT INTO hours (at, tunnel, bytes_up, bytes_down, ended) VALUES (?1, ?2, 0, 0, ?3)
			ON CONFLICT DO UPDATE SET ended = ?3`, key.at, key.tunnel, a.encode()); err != nil {
			return err
		}
	}
	return nil
}
