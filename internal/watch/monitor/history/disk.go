package history

import "time"

// diskWatch says that the disk does not answer: the writer, which waits for it,
// cannot.
type diskWatch struct {
	*Store
	timer   *time.Timer
	said    bool  // of what the writer waits for now
	dropped int64 // before that
}

func newDiskWatch(s *Store) *diskWatch {
	d := &diskWatch{Store: s}
	d.timer = time.AfterFunc(s.opts.patience, d.late)
	d.timer.Stop()
	return d
}

// begin notes that the writer goes to the file.
func (d *diskWatch) begin() {
	d.mu.Lock()
	d.atFile, d.dropped, d.said = time.Now(), d.state.Dropped, false
	d.timer.Reset(d.opts.patience)
	d.mu.Unlock()
}

// end notes that it is back.
func (d *diskWatch) end() {
	d.mu.Lock()
	d.timer.Stop()
	waited, said, dropped := d.waited(), d.said, d.state.Dropped-d.dropped
	d.atFile = time.Time{}
	d.mu.Unlock()
	if said {
		d.log.Info("the disk answers the history again", "file", d.path, "waited", waited.Round(time.Millisecond), "records_dropped", dropped)
	}
}

func (d *diskWatch) late() {
	d.mu.Lock()
	waited, waiting, dropped := d.waited(), len(d.queue), d.state.Dropped-d.dropped
	late := waited >= d.opts.patience // or the writer has just come back
	if late {
		d.said = true
		d.timer.Reset(reportInterval)
	}
	d.mu.Unlock()
	if late {
		d.log.Error("the disk does not answer the history, forwarding goes on without it", "file", d.path, "waited", waited.Round(time.Millisecond),
			"remedy", "see what the disk is busy with", "records_waiting", waiting, "records_dropped", dropped)
	}
}
