package history

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
)

// TestTwoProcessesTakeTurns has two processes write a few records at a time, as
// in an upgrade.
func TestTwoProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	slowWithRace(t)
	path := filepath.Join(t.TempDir(), "history.db")
	var writers []*writer
	for range 2 {
		s, _ := opened(t, path, Options{})
		s.Close()
		w := newWriter(s)
		if err := w.open(); err != nil {
			t.Fatal(err)
		}
		defer w.letGo()
		writers = append(writers, w)
	}
	all := made(2*segmentLen+300, 10*time.Second, noon)
	for i, turn := 0, 0; i < len(all); turn++ {
		w := writers[turn/3%2]
		n := min(1+turn%4, len(all)-i)
		w.batch = append(w.batch[:0], all[i:i+n]...)
		if err := w.write(); err != nil {
			t.Fatal(err)
		}
		i += n
	}
	r := reader(t, path)
	i := 0
	err := r.Walk(t.Context(), Query{}, func(got *monitor.Record) error {
		if got.ID != int64(i+1) || got.Flow != all[i].Flow || got.BytesDown != all[i].BytesDown {
			t.Fatalf("record %d is %+v, want %+v", i+1, got, all[i])
		}
		one, err := r.Get(t.Context(), got.ID)
		if diff := gocmp.Diff(*got, one, gocmp.Comparer(func(a, b flow.Address) bool { return a == b })); diff != "" || err != nil {
			t.Fatalf("record %d alone is not what Walk shows (-Walk +Get), %v:\n%s", got.ID, err, diff)
		}
		i++
		return nil
	})
	if err != nil || i != len(all) {
		t.Errorf("%d records of %d, %v", i, len(all), err)
	}
	if s, err := r.Summary(t.Context(), Period{}, Selection{}); err != nil || s.Flows != int64(len(all)) {
		t.Errorf("the summary has %d flows of %d, %v", s.Flows, len(all), err)
	}
	isSound(t, path)
}

// TestSegmentAfterAnotherProcess has one process write what a second one, or a
// transaction that failed, has changed meanwhile.
func TestSegmentAfterAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	s.Close()
	w := newWriter(s)
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	defer w.letGo()
	all := made(segmentLen+10, time.Second, noon)
	write := func(from, to int) error {
		w.batch = append(w.batch[:0], all[from:to]...)
		return w.write()
	}
	for from := 0; from < 600; from += 100 {
		if err := write(from, from+100); err != nil {
			t.Fatal(err)
		}
	}
	db := w.db.conn
	// The table is away when it is wanted, so the transaction comes to nothing.
	for _, statement := range []string{"ALTER TABLE hours RENAME TO away", "ALTER TABLE away RENAME TO hours"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		if statement[len(statement)-4:] == "away" && write(600, 700) == nil {
			t.Fatal("it is written")
		}
	}
	if w.segment.last != 0 {
		t.Errorf("the segment is known up to %d after a failure", w.segment.last)
	}
	if err := write(600, 700); err != nil {
		t.Fatal(err)
	}
	// The other process lets the first ones go.
	if _, err := db.ExecContext(t.Context(), "DELETE FROM records WHERE id <= 300"); err != nil {
		t.Fatal(err)
	}
	if err := write(700, len(all)); err != nil {
		t.Fatal(err)
	}
	r := reader(t, path)
	longest, err := r.Query(t.Context(), Query{Order: Longest, Limit: -1})
	if err != nil || len(longest) != len(all)-300 {
		t.Errorf("%d records of %d, %v", len(longest), len(all)-300, err)
	}
	for i := range longest {
		if want := all[longest[i].ID-1]; longest[i].Flow != want.Flow || longest[i].BytesUp != want.BytesUp {
			t.Errorf("record %d is %+v, want %+v", longest[i].ID, longest[i], want)
		}
	}
}

// TestCheckReadsRecords damages what SQLite takes for any value.
func TestCheckReadsRecords(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"a number":           "UPDATE records SET bytes_up = bytes_up + 1 WHERE id = 1024",
		"a missing record":   "DELETE FROM records WHERE id = 256",
		"an address":         "UPDATE records SET client = '10.0.0.256' WHERE id = 7",
		"a goodput":          "UPDATE records SET goodput = x'01ff' WHERE id = 7",
		"a name":             "UPDATE records SET name = x'5f3a' WHERE id = 7",
		"a type":             "UPDATE records SET start_ms = 'noon' WHERE id = 7",
		"a record at last":   "UPDATE records SET bytes_down = -1 WHERE id = (SELECT max(id) FROM records)",
		"a digest":           "UPDATE segments SET digest = substr(digest, 1, 3000) || x'ffffffff' || substr(digest, 3005)",
		"a segment's digest": "DELETE FROM segments WHERE last = 1024",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "history.db")
			s, _ := opened(t, path, Options{})
			add(t, s, made(2*segmentLen+50, time.Second, noon))
			s.Close()
			if err := Check(t.Context(), path); err != nil {
				t.Fatal(err)
			}
			db, err := openDatabase(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = db.conn.ExecContext(t.Context(), statement)
			db.close()
			if err != nil {
				t.Fatal(err)
			}
			if err := Check(t.Context(), path); !errors.Is(err, ErrUnsound) {
				t.Errorf("%v, want %v", err, ErrUnsound)
			}
		})
	}
}

func TestFlowsAreFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	all := made(segmentLen+50, 10*time.Second, noon)
	for i := range all {
		all[i].Flow = flow.ID(i % 40) // processes began anew
	}
	add(t, s, all)
	r := reader(t, path)
	for _, i := range []int{0, 7, 500, segmentLen - 1, segmentLen, len(all) - 1} {
		got, err := r.Find(t.Context(), all[i].Flow, all[i].Start)
		if err != nil || got.ID != int64(i+1) {
			t.Errorf("record %d: %d, %v", i+1, got.ID, err)
		}
	}
	if _, err := r.Find(t.Context(), 41, all[3].Start); !errors.Is(err, ErrNoRecord) {
		t.Errorf("a flow of another number is found: %v, want %v", err, ErrNoRecord)
	}
	if _, err := r.Find(t.Context(), all[3].Flow, all[3].Start.Add(-time.Hour)); !errors.Is(err, ErrNoRecord) {
		t.Errorf("a flow of another time is found: %v, want %v", err, ErrNoRecord)
	}
}

// TestViewOfFlows compares the view that sqlite3 users read with the records.
func TestViewOfFlows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{})
	all := made(300, time.Second, noon)
	all[5].Error = "connection reset\x00 by \xff"
	add(t, s, all)
	i := 0
	err := reader(t, path).look(t.Context(), func(v *view) error {
		return v.each(`SELECT id, ended_utc, tunnel, client || ':' || client_port, hop, elapsed_s, bytes_up,
			ifnull(cause, ''), cause_share IS NULL, reason, ended_by, ifnull(error, ''),
			target_congestion_control, target_rtt_us, goodput_bps FROM flows ORDER BY id`, nil, func(row scanner) error {
			want := &all[i]
			i++
			var id, up, rttUs int64
			var ended, tunnel, client, hop, cause, reason, endedBy, text, algorithm string
			var seconds, goodput float64
			var noShare bool
			err := row.Scan(&id, &ended, &tunnel, &client, &hop, &seconds, &up, &cause, &noShare, &reason, &endedBy, &text,
				&algorithm, &rttUs, &goodput)
			if err != nil {
				return err
			}
			if id != int64(i) || ended != want.End.Format("2006-01-02 15:04:05.000") ||
				tunnel != want.Tunnel || hop != want.Hop ||
				math.Abs(seconds-want.Elapsed.Seconds()) > 1e-6 || up != want.BytesUp ||
				cause != string(want.Cause) || noShare != (cause == "") ||
				reason != string(want.Reason) || endedBy != want.EndedBy || algorithm != want.TargetLeg.CongestionControl ||
				rttUs != want.TargetLeg.RTT.Duration().Microseconds() || math.Abs(goodput-want.GoodputBps()) > 1 {
				t.Errorf("record %d of the view differs from %+v", id, want)
			}
			if wantClient := fmt.Sprintf("%s:%d", want.Client.Addr(), want.Client.Port()); client != wantClient {
				t.Errorf("client %s, want %s", client, wantClient)
			}
			if wantText := strings.ReplaceAll(strings.ToValidUTF8(want.Error, "?"), "\x00", "?"); text != wantText {
				t.Errorf("error %q, want %q", text, wantText)
			}
			return nil
		})
	})
	if err != nil || i != len(all) {
		t.Errorf("%d of %d records: %v", i, len(all), err)
	}
}
