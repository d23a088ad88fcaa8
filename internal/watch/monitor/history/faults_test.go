package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

func TestSizeIsKept(t *testing.T) {
	slowWithRace(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, _ := opened(t, path, Options{MaxBytes: 20 << 20})
	begin := noon.Add(-2000 * time.Hour)
	fill := func(n int, most int64) {
		t.Helper()
		all := made(n, 10*time.Second, begin.Add(time.Duration(n)*10*time.Second))
		begin = all[n-1].End
		for len(all) > 0 {
			add(t, s, all[:min(len(all), 5000)])
			all = all[min(len(all), 5000):]
			if file, wal := size(path); file+wal > most {
				t.Fatalf("%d bytes and %d beside them, more than %d", file, wal, most)
			}
		}
	}
	const all = 110_000
	fill(all, 20<<20)
	r := reader(t, path)
	e, err := r.Extent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e.Records < all/3 || e.Records > all-10_000 || !e.Newest.Equal(begin) {
		t.Errorf("kept %d records, of until %v", e.Records, e.Newest)
	}
	oldest, err := r.Query(t.Context(), Query{Until: e.Oldest.Add(time.Millisecond)})
	if err != nil || len(oldest) != 1 || oldest[0].ID != all-e.Records+1 {
		t.Errorf("it is not the oldest that went: %v %v", oldest, err)
	}
	// What is gone is still in the hours.
	whole, err := r.Summary(t.Context(), Period{}, Selection{})
	if err != nil || !whole.Approximate || whole.Flows != all {
		t.Errorf("the summary of all has %d flows, approximate: %v, %v", whole.Flows, whole.Approximate, err)
	}
	kept, err := r.Summary(t.Context(), Period{Since: e.Oldest}, Selection{})
	if err != nil || kept.Approximate || kept.Flows != e.Records {
		t.Errorf("the summary of what is kept has %d flows of %d, approximate: %v, %v", kept.Flows, e.Records, kept.Approximate, err)
	}
	// A smaller size makes the file smaller, some megabytes at a time.
	s.SetLimits(16<<20, 0)
	nettest.Eventually(t, patience, func() bool { file, _ := size(path); return file <= 16<<20-reserve+slackPages*pageBytes }, func() string {
		file, wal := size(path)
		return fmt.Sprintf("the file has %d bytes and %d beside them", file, wal)
	})
	fill(5_000, 16<<20)
	s.Close()
	isSound(t, path)
}

func TestAgeIsKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	all := made(3*segmentLen+100, 2*time.Second, time.Now())
	all[0].End = time.Now().Add(-40 * time.Hour) // the clock was wrong
	s, _ := opened(t, path, Options{MaxAge: Forever})
	add(t, s, all)
	nettest.Must(t, s.Close())
	// The first record has the store look at the age of all of them.
	s, _ = opened(t, path, Options{MaxAge: time.Hour, settle: time.Nanosecond})
	add(t, s, made(1, time.Second, time.Now()))
	e, err := reader(t, path).Extent(t.Context())
	if err != nil || e.Records > 2*segmentLen+101 || e.Records <= 1800 {
		t.Errorf("kept %d records of 1800 within the hour and %d older ones, %v", e.Records, len(all)-1800, err)
	}
}

// TestClockSteps has the clock of the host step far ahead and back: nothing is
// let go of because of it.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	now := make(chan time.Time, 1)
	now <- time.Now()
	read := func() time.Time { v := <-now; now <- v; return v }
	set := func(v time.Time) { <-now; now <- v }
	s, _ := opened(t, path, Options{now: read})
	add(t, s, made(segmentLen+5, time.Second, time.Now()))
	for _, wrong := range []time.Duration{10 * 365 * 24 * time.Hour, -30 * 365 * 24 * time.Hour, 0} {
		set(time.Now().Add(wrong))
		add(t, s, made(5, time.Second, read()))
	}
	r := reader(t, path)
	e, err := r.Extent(t.Context())
	if err != nil || e.Records != segmentLen+20 {
		t.Errorf("%d records are left of %d, %v", e.Records, segmentLen+20, err)
	}
	newest, err := r.Query(t.Context(), Query{Limit: 5})
	if err != nil || newest[0].ID != segmentLen+20 || time.Since(newest[0].End) > time.Hour {
		t.Errorf("the newest are not those that were written last: %v %v", newest, err)
	}
	future, err := r.Query(t.Context(), Query{Since: time.Now().Add(time.Hour)})
	if err != nil || len(future) != 5 {
		t.Errorf("%d records of the future, %v", len(future), err)
	}
}

// lock holds a lock of another program on a file.
func lock(t *testing.T, path string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "rw", 5000, ""))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() { conn.Close(); db.Close() }
}

// TestAddNeverWaits holds the file up, by a lock of another program and by a
// disk that does not answer, until Add has returned each time.
func TestAddNeverWaits(t *testing.T) {
	slowWithRace(t)
	t.Parallel()
	stuck := make(chan struct{})
	var once bool
	for name, hold := range map[string]func(string) (Options, func()){
		"lock": func(path string) (Options, func()) { return Options{}, nil },
		"disk": func(string) (Options, func()) {
			return Options{patience: 50 * time.Millisecond, beforeCall: func() {
				if once {
					<-stuck
				}
				once = true
			}}, func() { close(stuck) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "history.db")
			opts, release := hold(path)
			s, said := opened(t, path, opts)
			if release == nil {
				add(t, s, made(1, time.Second, noon))
				release = lock(t, path)
			}
			all := made(1000, time.Second, noon)
			for range 30 { // an Add that waits for the file never returns
				s.Add(slices.Clone(all))
			}
			state := s.State()
			if state.Dropped < 30_000-2*queueLen || state.Dropped+int64(state.Waiting) > 30_000 {
				t.Errorf("of 30000 records %d wait and %d were dropped", state.Waiting, state.Dropped)
			}
			says := map[string]string{"lock": "locked by another program", "disk": "the disk does not answer the history"}[name]
			said.waitFor(t, says)
			if name == "disk" { // the log may have spoken of an earlier call, which was slow
				nettest.Eventually(t, patience, func() bool { return strings.Contains(s.State().Problem, "the disk has not answered") },
					func() string { return fmt.Sprintf("the state says nothing of the disk: %+v", s.State()) })
			}
			release()
			becomes(t, s, "30000 records are written or dropped", func(s State) bool { return s.Written >= 30_000-s.Dropped && s.Problem == "" })
			if name == "disk" && !strings.Contains(said.String(), "the disk answers the history again") {
				t.Errorf("the log does not say that the disk answers again:\n%s", said)
			}
			s.Close()
			isSound(t, path)
		})
	}
}

// mounted is a directory on a small file system of its own.
func mounted(t *testing.T, options string) string {
	t.Helper()
	nettest.RequireSandbox(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestFullDisk(t *testing.T) {
	slowWithRace(t)
	t.Parallel()
	dir := mounted(t, "size=4m")
	path := filepath.Join(dir, "history.db")
	s, said := opened(t, path, Options{})
	all := made(1000, time.Second, noon)
	nettest.Eventually(t, patience, func() bool {
		if s.State().Waiting < batchLen {
			s.Add(slices.Clone(all))
		}
		return strings.Contains(said.String(), "make room on the disk")
	}, func() string { return "the log says that the disk is full; it says:\n" + said.String() })
	for range 30 {
		s.Add(slices.Clone(all))
	}
	if s.State().Written == 0 || s.State().Dropped == 0 {
		t.Fatalf("some records are written and some dropped while the disk is full; the store is at %+v", s.State())
	}
	isSound(t, path)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "all that waited is written", healthy)
	if !strings.Contains(said.String(), "written again") {
		t.Errorf("the log does not say that the history is written again:\n%s", said)
	}
	add(t, s, made(10, time.Second, noon))
	s.Close()
	isSound(t, path)
}

func TestReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	dir := mounted(t, "size=32m")
	path := filepath.Join(dir, "history.db")
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, "size=32m"); err != nil {
			t.Fatal(err)
		}
	}
	s, _ := opened(t, path, Options{})
	add(t, s, made(10, time.Second, noon))
	s.Close()
	remount(unix.MS_RDONLY)
	late, said := opened(t, path, Options{})
	late.Add(made(10, time.Second, noon))
	said.waitFor(t, "may be written")
	if got, err := reader(t, path).Query(t.Context(), Query{}); err != nil || len(got) != 10 {
		t.Errorf("%d records to be read, %v", len(got), err)
	}
	remount(0)
	becomes(t, late, "10 records are written", func(s State) bool { return s.Written == 10 })
}

func TestNoDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	s, said := opened(t, filepath.Join(dir, "history.db"), Options{})
	s.Add(made(10, time.Second, noon))
	said.waitFor(t, "make the directory")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "10 records are written", func(s State) bool { return s.Written == 10 })
}

// execute runs a statement on a file of which nobody else has hold.
func execute(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "rwc", 5000, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// ofVersion makes a history that another version of longhaul seems to have written.
func ofVersion(t *testing.T, path string, version int) {
	t.Helper()
	s, _ := opened(t, path, Options{})
	add(t, s, made(10, time.Second, noon))
	s.Close()
	execute(t, path, fmt.Sprintf("PRAGMA user_version = %d", version))
}

func TestFilesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(path string)
		err  error
		said string
	}{
		"newer":   {func(path string) { ofVersion(t, path, 99) }, ErrNewer, "start the newer version again"},
		"older":   {func(path string) { ofVersion(t, path, 1) }, ErrOlder, "move the file away"},
		"foreign": {func(path string) { execute(t, path, "CREATE TABLE bookmarks (url TEXT)") }, ErrForeign, "a file of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "history.db")
			c.make(path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s, said := opened(t, path, Options{closing: time.Millisecond})
			s.Add(made(10, time.Second, noon))
			said.waitFor(t, c.said)
			s.Close()
			after, err := os.ReadFile(path)
			if err != nil || string(before) != string(after) {
				t.Errorf("the file was changed: %v", err)
			}
			if s.Dropped() != 10 {
				t.Errorf("%d records counted as dropped", s.Dropped())
			}
			if _, err := reader(t, path).Query(t.Context(), Query{}); !errors.Is(err, c.err) {
				t.Errorf("reading: %v", err)
			}
		})
	}
}

// TestUpgradeOfTheSchemaStopsTheOldProcess has a newer process change the file
// while an older one writes.
func TestUpgradeOfTheSchemaStopsTheOldProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, said := opened(t, path, Options{closing: time.Millisecond})
	add(t, s, made(10, time.Second, noon))
	execute(t, path, "PRAGMA user_version = 99")
	s.Add(made(10, time.Second, noon))
	said.waitFor(t, "newer version")
	if s.State().Written != 10 {
		t.Errorf("%d records are written into a newer file, want the 10 from before", s.State().Written)
	}
}

func TestUnsoundFilesAreSetAside(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*testing.T, *os.File, int64){
		"garbage": func(t *testing.T, f *os.File, n int64) {
			if err := f.Truncate(0); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(strings.Repeat("garbage ", 4096)), 0); err != nil {
				t.Fatal(err)
			}
		},
		"overwritten pages": func(t *testing.T, f *os.File, n int64) {
			if _, err := f.WriteAt([]byte(strings.Repeat("\xff", int(n)-8192)), 8192); err != nil {
				t.Fatal(err)
			}
		},
		"cut off": func(t *testing.T, f *os.File, n int64) {
			if err := f.Truncate(n / 2); err != nil {
				t.Fatal(err)
			}
		},
		"one bad page, found after a kill": func(t *testing.T, f *os.File, n int64) {
			if _, err := f.WriteAt([]byte(strings.Repeat("\xff", 4096)), n/2/4096*4096); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "history.db")
			s, _ := opened(t, path, Options{})
			add(t, s, made(3000, time.Second, noon))
			s.Close()
			execute(t, path, "UPDATE state SET writer = 2147483647") // somebody who is no more
			execute(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			damage(t, f, info.Size())
			f.Close()
			again, said := opened(t, path, Options{})
			said.waitFor(t, "was set aside")
			add(t, again, made(20, time.Second, noon))
			if _, err := os.Stat(path + ".unsound"); err != nil {
				t.Errorf("the unsound file is not kept aside: %v", err)
			}
			again.Close()
			isSound(t, path)
			if got, err := reader(t, path).Query(t.Context(), Query{}); err != nil || len(got) < 20 {
				t.Errorf("%d records, %v", len(got), err)
			}
		})
	}
}

func TestFileTakenAway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	s, said := opened(t, path, Options{})
	add(t, s, made(10, time.Second, noon))
	r := reader(t, path)
	if got, err := r.Query(t.Context(), Query{}); err != nil || len(got) != 10 {
		t.Fatalf("%d records, %v", len(got), err)
	}
	for _, end := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+end, path+".old"+end); err != nil {
			t.Fatal(err)
		}
	}
	add(t, s, made(3, time.Second, noon))
	if !strings.Contains(said.String(), "taken away") {
		t.Errorf("the log does not say that the file was taken away:\n%s", said)
	}
	if got, err := r.Query(t.Context(), Query{}); err != nil || len(got) != 3 {
		t.Errorf("%d records in the new file, %v", len(got), err)
	}
}

// TestTwoWriters is an upgrade: the old process writes what is left beside the
// new one.
func TestTwoWriters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	old, _ := opened(t, path, Options{})
	new, _ := opened(t, path, Options{})
	// Each part is a batch of its own, which both write at the same time.
	part := batchLen
	if raceDetector {
		part = 200
	}
	all := made(4*part, time.Second, noon)
	for half := range slices.Chunk(all, 2*part) {
		old.Add(slices.Clone(half[:part]))
		new.Add(slices.Clone(half[part:]))
		nettest.Eventually(t, patience, func() bool { return old.State().Waiting+new.State().Waiting == 0 }, func() string {
			return fmt.Sprintf("records wait: the old process is at %+v, the new one at %+v", old.State(), new.State())
		})
	}
	if err := errors.Join(old.Close(), new.Close()); err != nil {
		t.Fatal(err)
	}
	if o, n := old.State(), new.State(); o.Written != int64(len(all)/2) || n.Written != int64(len(all)/2) {
		t.Errorf("%d and %d records are written, want %d each", o.Written, n.Written, len(all)/2)
	}
	s, err := reader(t, path).Summary(t.Context(), Period{}, Selection{})
	if err != nil || s.Flows != int64(len(all)) {
		t.Errorf("%d flows, %v", s.Flows, err)
	}
	isSound(t, path)
}

const childFile = "LONGHAUL_HISTORY_CHILD"

// addForEver is a child process: it adds records, of which BytesUp counts from 1, and
// prints an addition for each batch.
func addForEver(file string) {
	s, err := Open(file, Options{})
	if err != nil {
		panic(err)
	}
	pace := time.NewTicker(2 * time.Millisecond)
	for n := int64(1); ; <-pace.C {
		if s.State().Waiting > queueLen/2 { // so that none is dropped
			continue
		}
		batch := make([]monitor.Record, 5)
		for i := range batch {
			at := time.Now()
			batch[i] = monitor.Record{End: at, EndedBy: "both",
				Record: flow.Record{Flow: flow.ID(n), Tunnel: "t", Start: at, BytesUp: n, Elapsed: units.Seconds(time.Millisecond), Reason: "end"}}
			n++
		}
		s.Add(batch)
		fmt.Println(n-1, time.Now().UnixMilli(), s.State().Written)
	}
}

// addition is a batch that a child process has added.
type addition struct {
	last    int64     // BytesUp of its last record
	at      time.Time // when it was added
	written int64     // records that the store had written by then
}

// additions reads what a child process has printed, but for a line that it has not ended.
func additions(t *testing.T, path string) (all []addition) {
	t.Helper()
	text, err := os.ReadFile(path)
	nettest.Must(t, err)
	for line := range strings.Lines(string(text)) {
		var a addition
		var ms int64
		if !strings.HasSuffix(line, "\n") {
			break
		}
		if _, err := fmt.Sscan(line, &a.last, &ms, &a.written); err != nil {
			t.Fatalf("a child process prints %q: %v", line, err)
		}
		a.at = time.UnixMilli(ms)
		all = append(all, a)
	}
	return all
}

// startWriter starts a child process that adds records to a file, and prints to another one.
func startWriter(t *testing.T, path string) (cmd *exec.Cmd, said string) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "said"))
	nettest.Must(t, err)
	defer out.Close()
	cmd = exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), childFile+"="+path)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	nettest.Must(t, cmd.Start())
	t.Cleanup(func() { // of a test that has failed
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out.Name()
}

// TestKill kills a process that writes, at any moment. The file is sound each time. It has all
// records that the process had counted as written, and none is missing before the last one.
func TestKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history.db")
	for range 5 {
		before := records(t, path)
		newest, all, _ := killWriter(t, path)
		if kept := records(t, path) - before; kept != newest {
			t.Errorf("the file has %d of the %d records up to the last one", kept, newest)
		}
		if written := all[len(all)-1].written; newest < written {
			t.Errorf("the process had written %d records, the file has %d", written, newest)
		}
	}
}

// killWriter kills a process that writes to a file after some hundred records, and returns
// BytesUp of the last record in the file, what the process had added, and when it was killed.
func killWriter(t *testing.T, path string) (newest int64, all []addition, killed time.Time) {
	t.Helper()
	before := records(t, path)
	cmd, said := startWriter(t, path)
	nettest.Eventually(t, patience, func() bool { return records(t, path) > before }, func() string { return "the child writes nothing" })
	enough := len(additions(t, said)) + rand.IntN(200) // any moment
	nettest.Eventually(t, patience, func() bool { return len(additions(t, said)) >= enough }, func() string { return "the child adds no more" })
	nettest.Must(t, cmd.Process.Signal(syscall.SIGKILL))
	killed = time.Now()
	_ = cmd.Wait()
	nettest.Must(t, Check(t.Context(), path))
	last, err := reader(t, path).Query(t.Context(), Query{Limit: 1})
	if err != nil || len(last) != 1 {
		t.Fatalf("%d records can be read after a kill, %v", len(last), err)
	}
	return last[0].BytesUp, additions(t, said), killed
}

// records are those in a file, 0 if there is none.
func records(t *testing.T, path string) int64 {
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	e, err := r.Extent(t.Context())
	if err != nil && !errors.Is(err, ErrNoFile) && !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	return e.Records
}

// TestLogIsBounded has somebody read for so long that SQLite's log cannot be
// taken into the file.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	slowWithRace(t)
	path := filepath.Join(t.TempDir(), "history.db")
	s, said := opened(t, path, Options{})
	add(t, s, made(100, time.Second, noon))
	db, err := sql.Open("sqlite", dsn(path, "ro", 1000, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRow("SELECT count(*) FROM records").Scan(&n); err != nil || n != 100 {
		t.Fatalf("another reader finds %d records, want 100: %v", n, err)
	}
	all := made(4000, time.Second, noon)
	nettest.Eventually(t, patience, func() bool {
		s.Add(slices.Clone(all))
		return strings.Contains(said.String(), "reading the history for so long")
	}, func() string { return "the log says who holds it up; it says:\n" + said.String() })
	if _, wal := size(path); wal > logBound+4<<20 {
		t.Errorf("the log has %d bytes", wal)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "all that waited is written", healthy)
	nettest.Eventually(t, patience, func() bool { _, wal := size(path); return wal <= 8<<20 }, func() string { _, wal := size(path); return fmt.Sprint(wal) })
}

const otherUser = "LONGHAUL_HISTORY_READ"

// readAsOther is the child of TestReadersOfOtherUsers.
func readAsOther(path string) {
	r, err := OpenReader(path)
	if err != nil {
		panic(err)
	}
	switch records, err := r.Query(context.Background(), Query{}); {
	case errors.Is(err, ErrForbidden):
		fmt.Print("forbidden")
	case err != nil:
		fmt.Print(err)
	default:
		fmt.Print(len(records), " records")
	}
	os.Exit(0)
}

// TestReadersOfOtherUsers reads as another user, who may read the file and
// write nothing, or not even that.
func TestReadersOfOtherUsers(t *testing.T) {
	nettest.RequireRoot(t)
	dir, err := os.MkdirTemp("", "history") // others may not enter that of the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The test's own file lies where others may not go, either.
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(dir, "test")
	nettest.WriteProgram(t, self, program)
	path := filepath.Join(dir, "history.db")
	ask := func() string {
		cmd := exec.Command(self, "-test.run=^$")
		cmd.Env = append(os.Environ(), otherUser+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	mode := func(mode os.FileMode) {
		for _, end := range []string{"", "-wal", "-shm"} {
			if err := os.Chmod(path+end, mode); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
	}
	s, _ := opened(t, path, Options{})
	add(t, s, made(10, time.Second, noon))
	if got := ask(); got != "forbidden" {
		t.Errorf("as it is made: %s", got)
	}
	mode(0o644)
	if got := ask(); got != "10 records" {
		t.Errorf("while it is written: %s", got)
	}
	add(t, s, made(10, time.Second, noon))
	if got := ask(); got != "20 records" {
		t.Errorf("while it is written, later: %s", got)
	}
	s.Close()
	if got := ask(); got != "20 records" {
		t.Errorf("when nobody writes: %s", got)
	}

	// What a kill leaves.
	cmd, _ := startWriter(t, path)
	nettest.Eventually(t, patience, func() bool { return records(t, path) > DefaultLimit }, func() string { return "the child writes nothing" })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := os.Stat(path + "-wal"); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != fmt.Sprintf("%d records", DefaultLimit) {
		t.Errorf("after a kill: %s", got)
	}
}
