package faults

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite"

	"longhaul/internal/sys/httpd"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// Case 25: nothing can be written to the history. Flows begin, move and end as
// if nothing were, and once there is room again so does the history.
func TestCase25HistoryCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]struct {
		begin func(t *testing.T, file string) (end func())
		said  string
	}{
		"disk full": {fillDisk, `the history cannot be written, forwarding goes on without it.*make room on the disk`},
		"locked":    {lockFile, `the history cannot be written, forwarding goes on without it.*locked by another program`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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

// Case 25: the disk hangs. Whoever writes to it waits in the kernel and could not
// even be killed. Flows do not wait for it, nor does who asks how things are: it hangs until
// the end of what is done meanwhile.
func TestCase25HistoryDiskHangs(t *testing.T) {
	t.Parallel()
	disk := newDisk(t)
	file := filepath.Join(disk.dir, "history.db")
	listen, health, dashboard := nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1"), nettest.FreeAddress(t, "127.0.0.1")
	config := "history: {file: " + file + "}\nhttp_listen: " + health + "\ndashboard: {listen: \"" + dashboard + "\"}\n" + single(listen, echo(t, "127.0.0.1:0"), "")
	relay := startDaemon(t, nil, unsupervised, config)
	var standing []held
	for range 16 {
		standing = append(standing, hold(t, tcpscript.DialTo(listen)))
	}
	ended := 0
	open := func(n int) {
		for range n {
			hold(t, tcpscript.DialTo(listen)).release(t)
		}
		ended += n
	}
	open(20)
	metric := func(name string) string {
		t.Helper()
		_, text, err := httpd.Get(t.Context(), health, "/metrics", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if value, is := strings.CutPrefix(line, name+" "); is {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	nettest.Eventually(t, patience, func() bool { return metric("longhaul_history_records_total") == "20" }, func() string { return relay.log.String() })

	disk.freeze()
	echoing := useFlows(standing)
	open(200)
	for _, view := range []string{"overview", "flows"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		updates := 0
		err := followDashboard(ctx, http.DefaultTransport, dashboard, view, func() {
			if updates++; updates == 3 {
				cancel()
			}
		})
		if updates < 3 {
			t.Errorf("the dashboard's %s was updated %d times: %v", view, updates, err)
		}
		cancel()
	}
	relay.expectLog(`the disk does not answer the history, forwarding goes on without it.*records_waiting`)
	if output, _ := command(t, "status", "--control-socket", relay.socket()); !strings.Contains(output, "the disk has not answered for") {
		t.Errorf("status does not tell:\n%s", output)
	}
	relay.reload(config)
	open(20)
	echoing.end(t)
	if written := metric("longhaul_history_records_total"); written != "20" {
		t.Errorf("%s records are on a disk that takes none", written)
	}

	disk.thaw()
	relay.expectLog("the disk answers the history again.*records_dropped=0")
	for _, h := range standing {
		h.release(t)
		ended++
	}
	relay.signal(unix.SIGTERM)
	relay.expectExit(0)
	output, status := command(t, "history", "check", "--json", "--file", file)
	if status != 0 || !strings.Contains(output, fmt.Sprintf(`"records": %d`, ended)) {
		t.Errorf("the history is not sound, or has not %d records: %s", ended, output)
	}
}

// disk is a file system on a block device of its own, that can be made to hang.
type disk struct {
	t   *testing.T
	dir string
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	nettest.RequireSandbox(t)
	nettest.RequireRoot(t) // for the loop device
	mkfs, mount := nettest.RequireProgram(t, "mkfs.ext4", "e2fsprogs"), nettest.RequireProgram(t, "mount", "mount")
	nettest.RequireProgram(t, "fsfreeze", "util-linux")
	d := &disk{t: t, dir: t.TempDir()}
	image := filepath.Join(t.TempDir(), "image")
	writeFile(t, image, "")
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	d.run(mkfs, "-q", "-F", image)
	d.run(mount, "-o", "loop", image, d.dir)
	t.Cleanup(func() { d.run("umount", d.dir) })
	return d
}

// freeze has every write wait until thaw.
func (d *disk) freeze() {
	d.t.Helper()
	d.run("fsfreeze", "--freeze", d.dir)
	d.t.Cleanup(func() { _ = exec.Command("fsfreeze", "--unfreeze", d.dir).Run() }) // before anything waits for the relay's end
}

func (d *disk) thaw() { d.t.Helper(); d.run("fsfreeze", "--unfreeze", d.dir) }

func (d *disk) run(name string, args ...string) {
	d.t.Helper()
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %s: %v: %s", name, args, err, output)
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
