package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"longhaul/internal/watch/monitor"
)

// writer is the one goroutine of a store that touches the file.
type writer struct {
	*Store
	db      *database
	words   map[string]int64 // what is known to be in the file
	recent  [64]knownWord    // those of words that came last, by their lengths and ends
	batch   []monitor.Record // taken from the queue, not written yet
	segment openSegment
	clock   clockWatch
	fits    int64 // the size that the file was last found to fit into

	retryAt    time.Time // no attempt before
	retryPause time.Duration
	troubled   bool
	reported   time.Time // when trouble was said last
	lost       int64     // Dropped as it was said last
	disk       *diskWatch
	checked    chan error
}

// Pauses between two attempts to use a file that refuses.
const (
	firstRetry = time.Second
	lastRetry  = 10 * time.Second
)

func newWriter(s *Store) *writer {
	return &writer{Store: s, checked: make(chan error, 1), clock: clockWatch{began: time.Now(), settle: s.opts.settle}, disk: newDiskWatch(s)}
}

func (w *writer) loop() {
	defer close(w.stopped)
	w.attempt(w.open)
	tick := time.NewTicker(batchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.some:
		case err := <-w.checked:
			if err != nil && w.db != nil {
				w.trouble(err)
			}
			continue
		case <-w.stop:
			w.finish()
			return
		}
		w.work()
	}
}

// work writes what waits, and keeps the file within its bounds.
func (w *writer) work() {
	if time.Now().Before(w.retryAt) {
		w.report()
		return
	}
	if w.db != nil && w.db.replaced() {
		w.log.Warn("the history file was taken away, a new one is begun", "file", w.path)
		w.letGo()
	}
	if w.db == nil && !w.attempt(w.open) {
		return
	}
	for w.take(); ; w.take() {
		if !w.attempt(w.write) {
			return
		}
		if len(w.batch) > 0 || w.waiting() < batchLen {
			break
		}
	}
	w.recovered()
	w.attempt(w.shrink)
}

func (w *writer) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)
}

// take makes what waits the batch, unless there is one still.
func (w *writer) take() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.batch) == 0 {
		w.batch, w.queue = w.queue, w.batch
	}
}

// emptyBatch lets go of the records, and of the memory that a flood took.
func (w *writer) emptyBatch() {
	if cap(w.batch) > batchLen && len(w.batch) < batchLen/2 {
		w.batch = nil
		return
	}
	clear(w.batch)
	w.batch = w.batch[:0]
}

// attempt does something with the file and says whether that has worked.
func (w *writer) attempt(do func() error) bool {
	w.disk.begin()
	if w.opts.beforeCall != nil {
		w.opts.beforeCall()
	}
	err := do()
	w.disk.end()
	if err != nil {
		w.trouble(classify(err))
		return false
	}
	return true
}

// recovered says that trouble is over.
func (w *writer) recovered() {
	if !w.troubled {
		w.report()
		return
	}
	w.troubled, w.retryPause = false, 0
	w.problem("", "")
	w.log.Info("the history is written again", "file", w.path, "records_dropped", w.Dropped()-w.lost)
	w.lost = w.Dropped()
}

// trouble decides what follows an error: the file is set aside if it is not
// sound, and everything else is tried again later.
func (w *writer) trouble(err error) {
	if errors.Is(err, ErrUnsound) {
		w.letGo()
		aside, moveErr := setAside(w.path)
		if moveErr == nil {
			w.log.Error("the history file is not sound and was set aside, a new one is begun", "file", w.path, "aside", aside, "error", err)
			w.retryAt = time.Time{}
			return
		}
		err = fmt.Errorf("%w, and it cannot be moved away: %w", err, moveErr)
	}
	switch resultCode(err) {
	case sqliteConstraint, sqliteTooBig, sqliteMismatch:
		// It is the records: nothing is gained by trying them again.
		w.mu.Lock()
		w.state.Dropped += int64(len(w.batch))
		w.mu.Unlock()
		w.emptyBatch()
		w.retryPause = batchInterval
	case sqliteBusy, sqliteLocked:
		w.retryPause = batchInterval // whoever has it may let go at any time
	default:
		if resultCode(err) != sqliteFull {
			w.letGo() // what SQLite knows of the file may be wrong now
		}
		w.retryPause = min(max(2*w.retryPause, firstRetry), lastRetry)
	}
	w.retryAt = time.Now().Add(w.retryPause)
	w.problem(err.Error(), remedy(err))
	if !w.troubled || time.Since(w.reported) >= reportInterval {
		w.log.Error("the history cannot be written, forwarding goes on without it", "file", w.path, "error", err,
			"remedy", remedy(err), "records_dropped", w.Dropped()-w.lost)
		w.troubled, w.reported, w.lost = true, time.Now(), w.Dropped()
	}
}

// report says once in a while that records were dropped though nothing fails:
// the disk is slower than the flows end.
func (w *writer) report() {
	if dropped := w.Dropped(); !w.troubled && dropped > w.lost && time.Since(w.reported) >= reportInterval {
		w.log.Warn("records were dropped from the history, flows end faster than the disk takes them", "file", w.path, "records_dropped", dropped-w.lost)
		w.lost, w.reported = dropped, time.Now()
	}
}

func remedy(err error) string {
	switch {
	case errors.Is(err, ErrNewer):
		return "start the newer version again, or give history another file"
	case errors.Is(err, ErrOlder):
		return "move the file away, or give history another file; the older version still reads the old one"
	case errors.Is(err, ErrForeign):
		return "give history a file of its own"
	case errors.Is(err, ErrBusy):
		return "end the program that holds a lock on the file"
	case errors.Is(err, fs.ErrNotExist):
		return "make the directory, owned by the relay's user"
	case errors.Is(err, fs.ErrPermission):
		return "let the relay's user write the directory and the file"
	}
	switch resultCode(err) {
	case sqliteFull:
		return "make room on the disk, or lower max_size of history"
	case sqliteReadonly, sqliteCantOpen, sqliteIOErr, sqliteAuth:
		return "see that the file system is well, has room, and may be written"
	}
	return "see that the file and its directory may be written"
}

func (w *writer) open() error {
	db, err := openDatabase(background, w.path)
	if err != nil {
		return err
	}
	var last int
	err = db.conn.QueryRowContext(background, "SELECT writer FROM state").Scan(&last)
	if err == nil {
		_, err = db.conn.ExecContext(background, "UPDATE state SET writer = ?", os.Getpid())
	}
	if err == nil {
		err = db.transact(background, func() (err error) {
			db.epoch, err = beginEpoch(db.conn)
			return err
		})
	}
	if err != nil {
		db.close()
		return err
	}
	w.db, w.words, w.segment.last = db, map[string]int64{}, 0
	clear(w.recent[:])
	if last != 0 && last != os.Getpid() && !alive(last) {
		// A kill leaves a sound file; the end of a whole host may not. It takes
		// seconds to look, in which records are written already.
		go func(checked chan<- error) {
			if err := Check(background, w.path); errors.Is(err, ErrUnsound) {
				select {
				case checked <- err:
				default:
				}
			}
		}(w.checked)
	}
	return nil
}

// letGo closes the file, whatever state it is in.
func (w *writer) letGo() {
	if w.db != nil {
		w.db.close()
		w.db = nil
	}
}

// finish writes what is left, as far as that can be done soon.
func (w *writer) finish() {
	deadline := time.Now().Add(w.opts.closing)
	for time.Now().Before(deadline) {
		if w.take(); len(w.batch) == 0 && len(w.eventsWaiting()) == 0 && len(w.cursorsWaiting()) == 0 {
			break
		}
		if w.db == nil && !w.attempt(w.open) || !w.attempt(w.write) {
			time.Sleep(batchInterval / 4)
		}
	}
	w.mu.Lock()
	left := len(w.batch) + len(w.queue)
	w.state.Dropped += int64(left)
	w.queue = nil
	w.mu.Unlock()
	if left > 0 {
		w.log.Error("the history lost the last records", "file", w.path, "records", left)
	}
	if w.db != nil {
		_, _ = w.db.conn.ExecContext(background, "UPDATE state SET writer = 0 WHERE writer = ?", os.Getpid())
		w.letGo()
	}
}

// setAside moves a file away that is not sound. Only the last one is kept.
func setAside(path string) (string, error) {
	aside := path + ".unsound"
	for _, end := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(aside + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if err := os.Rename(path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// Without its log the file may miss its end; with it, it can be looked into.
	if err := os.Rename(path+"-wal", aside+"-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return aside, nil
}
