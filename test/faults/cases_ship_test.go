package faults

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"longhaul/internal/run/control"
	"longhaul/test/nettest"
	"longhaul/test/tcpscript"
)

// receiver is an HTTP server that takes JSON rows.
type receiver struct {
	*httptest.Server
	unsteady atomic.Bool                      // some requests are cut off, before their rows are kept or after
	trouble  atomic.Pointer[http.HandlerFunc] // answers instead, unless nil
	wants    string                           // the Authorization header

	mu        sync.Mutex
	rows      map[string]string // by key, as they came
	again     int               // rows that came again
	different []string          // keys that came again with another row
	posts     int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{rows: map[string]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if instead := r.trouble.Load(); instead != nil {
			(*instead)(w, request)
			return
		}
		unsteady := r.unsteady.Load()
		if unsteady && rand.IntN(4) == 0 {
			panic(http.ErrAbortHandler)
		}
		if err := r.take(request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if unsteady && rand.IntN(4) == 0 {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// take keeps all rows of a request, or none.
func (r *receiver) take(request *http.Request) error {
	if got := request.Header.Get("Authorization"); got != r.wants {
		return fmt.Errorf("Authorization is %q", got)
	}
	z, err := gzip.NewReader(request.Body)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return err // the relay was killed
	}
	rows := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var key struct {
			Relay     string
			Epoch, ID int64
		}
		if err := json.Unmarshal(lines.Bytes(), &key); err != nil {
			return err
		}
		rows[fmt.Sprint(key.Relay, key.Epoch, key.ID)] = lines.Text()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.posts++
	for key, row := range rows {
		was, has := r.rows[key]
		if has {
			r.again++
			if was != row {
				r.different = append(r.different, was+"\n"+row)
			}
		}
		r.rows[key] = row
	}
	return nil
}

func (r *receiver) has() (rows, posts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.rows), r.posts
}

// waitFor waits until the receiver has so many rows.
func (r *receiver) waitFor(t *testing.T, d *daemon, want int) {
	t.Helper()
	var rows int
	nettest.Eventually(t, patience, func() bool { rows, _ = r.has(); return rows >= want },
		func() string { return fmt.Sprintf("%d of %d rows have arrived\n%s", rows, want, d.log) })
	if rows > want {
		t.Errorf("%d rows of %d records", rows, want)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.different) > 0 {
		t.Errorf("%d rows came again with other contents, such as\n%s", len(r.different), r.different[0])
	}
}

// comeAndGo has flows begin and end all the time, also while no relay is there. end waits for them.
func comeAndGo(listen string) (ended *atomic.Int64, end func()) {
	ended = new(atomic.Int64)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := net.Dial("tcp", listen)
				if err != nil {
					continue
				}
				_, err = conn.Write([]byte("x"))
				if err == nil {
					_ = conn.(*net.TCPConn).CloseWrite()
					_, err = io.Copy(io.Discard, conn)
				}
				conn.Close()
				if err == nil {
					ended.Add(1)
				}
			}
		})
	}
	return ended, func() { close(stop); all.Wait() }
}

// recordsIn counts the records of a history, which must be sound.
func recordsIn(t *testing.T, file string) int {
	t.Helper()
	output, status := command(t, "history", "check", "--json", "--file", file)
	var health struct{ Records int }
	if err := json.Unmarshal([]byte(output), &health); err != nil || status != 0 {
		t.Fatalf("history check: %v\n%s", err, output)
	}
	return health.Records
}

func shipTo(file string, r *receiver, more string) string {
	return fmt.Sprintf("history: {file: %s, site: site-a, ship: [{to: %q, name: receiver%s}]}\n", file, r.URL, more)
}

// Case 115: the relay is killed at any moment, and its receiver is unsteady. Each record that is in the
// history is at the receiver, with one row.
func TestCase115KilledWhileItShips(t *testing.T) {
	t.Parallel()
	const kills = 20
	r := newReceiver(t)
	r.unsteady.Store(true)
	file := filepath.Join(t.TempDir(), "history.db")
	listen := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, shipTo(file, r, "")+single(listen, echo(t, "127.0.0.1:0"), ""))
	flows, end := comeAndGo(listen)
	for range kills {
		_, posts := r.has()
		before, more, some := flows.Load(), rand.IntN(2), int64(rand.IntN(300))
		nettest.Eventually(t, patience, func() bool { _, now := r.has(); return now >= posts+more && flows.Load() >= before+some },
			func() string { return "nothing moves\n" + relay.log.String() })
		relay.signal(unix.SIGKILL)
		relay = restartDaemon(t, nil, relay)
	}
	end()
	relay.signal(unix.SIGTERM)
	relay.expectExit(0) // the last records are written, and perhaps not shipped
	records := recordsIn(t, file)
	relay = restartDaemon(t, nil, relay)
	r.waitFor(t, relay, records)
	if records < kills {
		t.Errorf("only %d records", records)
	}
	t.Logf("%d records, %d rows came again", records, r.again)
	for _, row := range r.rows {
		if !strings.Contains(row, `"relay_site":"site-a"`) {
			t.Fatalf("a row is %s", row)
		}
	}
}

// Case 116: the receiver refuses, hangs, or cannot be asked since a file is missing. Flows go on and
// their records wait; status says why.
func TestCase116ReceiverTakesNothing(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.wants = "Bearer secret"
	hang := http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		_, _ = io.Copy(io.Discard, request.Body)
		<-request.Context().Done()
	})
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the disk is full", http.StatusInsufficientStorage)
	})
	dir := t.TempDir()
	file, password := filepath.Join(dir, "history.db"), filepath.Join(dir, "password")
	listen := nettest.FreeAddress(t, "127.0.0.1")
	config := shipTo(file, r, ", password_file: "+password) + single(listen, echo(t, "127.0.0.1:0"), "")
	relay := startDaemon(t, nil, unsupervised, config)
	lasting := hold(t, tcpscript.DialTo(listen))
	records := 0
	flow := func(n int) {
		t.Helper()
		for range n {
			hold(t, tcpscript.DialTo(listen)).release(t)
		}
		records += n
	}
	state := func() (s struct {
		Problem string
		Waiting int
	}) {
		t.Helper()
		body, err := control.Status(t.Context(), relay.socket())
		var status struct {
			History struct {
				Ship []struct {
					Problem string
					Waiting int
				}
			}
		}
		if err == nil {
			err = json.Unmarshal(body, &status)
		}
		if err != nil {
			t.Fatal(err)
		}
		if all := status.History.Ship; len(all) == 1 {
			s = all[0]
		}
		return s
	}
	becomes := func(problem string, waiting int) {
		t.Helper()
		s := state()
		nettest.Eventually(t, patience, func() bool {
			s = state()
			return s.Waiting == waiting && (s.Problem == "") == (problem == "") && strings.Contains(s.Problem, problem)
		}, func() string {
			return fmt.Sprintf("want %q and %d records that wait, the state is %+v\n%s", problem, waiting, s, relay.log)
		})
	}
	flow(10)
	becomes("no such file", 10)
	relay.expectLog("records are not shipped, they wait in the history.*sink=receiver.*no such file")
	writeFile(t, password, "secret\n")
	r.waitFor(t, relay, records)
	becomes("", 0)
	relay.expectLog("records are shipped again")

	r.trouble.Store(&refuse)
	flow(10)
	becomes("the disk is full", 10)
	output, _ := command(t, "status", "--control-socket", relay.socket())
	if !strings.Contains(output, "records to receiver: 10 wait") || !strings.Contains(output, "the disk is full") || strings.Contains(output, "secret") {
		t.Errorf("status does not tell:\n%s", output)
	}
	r.trouble.Store(nil)
	r.waitFor(t, relay, records)
	becomes("", 0)

	// A receiver that hangs holds up neither a reload nor the relay's end.
	r.trouble.Store(&hang)
	flow(10)
	becomes("", 10)
	relay.reload(strings.Replace(config, "name: receiver", "clients: none, name: receiver", 1))
	lasting.alive(t, "while the receiver hangs")
	lasting.release(t)
	records++
	relay.signal(unix.SIGTERM)
	relay.expectExit(0)
	r.trouble.Store(nil)
	r.waitFor(t, restartDaemon(t, nil, relay), records)
	if text := fmt.Sprint(relay.log, r.rows); strings.Contains(text, "secret") {
		t.Error("the password is in the log or in a row")
	}
}

// Case 117: upgrades while records are shipped. No row comes twice, and none is missing.
func TestCase117UpgradesWhileItShips(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	file := filepath.Join(t.TempDir(), "history.db")
	listen := nettest.FreeAddress(t, "127.0.0.1")
	relay := startDaemon(t, nil, unsupervised, shipTo(file, r, "")+single(listen, echo(t, "127.0.0.1:0"), ""))
	flows, end := comeAndGo(listen)
	lasting := hold(t, tcpscript.DialTo(listen)) // its record is of the first process
	for range 5 {
		_, posts := r.has()
		before, some := flows.Load(), int64(rand.IntN(200))
		nettest.Eventually(t, patience, func() bool { _, now := r.has(); return now > posts && flows.Load() >= before+some },
			func() string { return "nothing moves\n" + relay.log.String() })
		if _, err := relay.upgrade(""); err != nil {
			t.Fatalf("%v\n%s", err, relay.log)
		}
	}
	end()
	lasting.release(t)
	<-relay.exited
	nettest.Eventually(t, patience, func() bool {
		rows, _ := r.has()
		return rows == recordsIn(t, file)
	}, func() string { return "not all rows arrive\n" + relay.log.String() })
	r.waitFor(t, relay, recordsIn(t, file))
	if r.again > 0 {
		t.Errorf("%d rows came twice", r.again)
	}
}
