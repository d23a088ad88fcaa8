package faults

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite"

	"longhaul/internal/nettest"
	"longhaul/internal/tcpscript"
)

// Case 25: nothing can be written to the history. Flows begin, move and end as
// if nothing were, and once there is room again so does the history.
func TestCase25HistoryCannotBeWritten(t *testing.T) {
	for name, trouble := range map[string]struct {
		begin func(t *testing.T, file string) (end func())
		said  string
	}{
		"disk full": {fillDisk, `the history cannot be written, forwarding goes on without it.*make room on the disk`},
		"locked":    {lockFile, `the history cannot be written, forwarding goes on without it.*locked by another program`},
	} {
		t.Run(name, func(t *testing.T) {
			nettest.RequireSandbox(t)
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			file := filepath.Join(dir, "history.db")
			listen := nettest.FreeAddress(t, "127.0.0.1")
			relay := startDaemon(t, nil, unsupervised, "history: {file: "+file+"}\n"+single(listen, echo(t, "127.0.0.1:0"), ""))
			lasting := hold(t, tcpscript.DialTo(listen))
			nettest.Eventually(t, patience, func() bool {
				_, status := command(t, "history", "check", "--file", file)
				return status == 0
			}, func() string { return "there is no history" })

			end := trouble.begin(t, file)
			for range 20 {
				hold(t, tcpscript.DialTo(listen)).release(t)
			}
			relay.expectLog(trouble.said)
			for range 20 {
				hold(t, tcpscript.DialTo(listen)).release(t)
			}
			lasting.alive(t, "while the history cannot be written")
			end()
			relay.expectLog("the history is written again")
			lasting.release(t)
			relay.signal(unix.SIGTERM)
			relay.expectExit(0)
			if output, status := command(t, "history", "check", "--file", file); status != 0 {
				t.Errorf("the history is not sound: %s", output)
			}
		})
	}
}

// fillDisk takes all the room that is left beside a file.
func fillDisk(t *testing.T, file string) (end func()) {
	filler := filepath.Join(filepath.Dir(file), "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	return func() {
		if err := os.Remove(filler); err != nil {
			t.Error(err)
		}
	}
}

// lockFile holds the lock that a writer of the file needs.
func lockFile(t *testing.T, file string) (end func()) {
	db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(5000)")
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
	return func() {
		_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
		conn.Close()
		db.Close()
	}
}
