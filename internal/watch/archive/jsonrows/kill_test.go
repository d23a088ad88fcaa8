package jsonrows

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/archive/ship"
	"longhaul/internal/watch/monitor"
	"longhaul/internal/watch/monitor/history"
	"longhaul/internal/watch/monitor/history/synthetic"
	"longhaul/test/nettest"
)

// Environment of a process that ships.
const (
	childHistory = "JSONROWS_TEST_HISTORY"
	childTarget  = "JSONROWS_TEST_TARGET"
)

// shipForEver ships a history as a relay does, until it is killed.
func shipForEver(path, to string) {
	target, err := archive.ParseTarget(to)
	if err == nil {
		var store *history.Store
		if store, err = history.Open(path, history.Options{MaxAge: 100 * 365 * 24 * time.Hour}); err == nil {
			ship.New(store, ship.Options{Relay: "relay-a", Site: "site-a", Open: func(t archive.Target) (archive.Sink, error) { return Open(t) }}).
				Set([]archive.Target{target})
			_, _ = io.Copy(io.Discard, os.Stdin) // which ends with the test
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// killRounds is how often each of the three is killed.
var killRounds = 2

const stopMerges = "SYSTEM STOP MERGES"

// TestKills ships a history, and kills the server, the connection and the process that ships at any
// moment of deliveries: at a byte of a request, or when the server has the rows and its answer is
// still on its way. In the end the view has each record once.
func TestKills(t *testing.T) {
	c := startClickHouse(t, t.TempDir())
	c.schema(t)
	c.ask(t, stopMerges) // which would take away the rows that came twice
	path := filepath.Join(t.TempDir(), "history.db")
	all := 5000 * (3*killRounds + 2)
	fillHistory(t, path, all)
	way := newWay(t, c.address)
	to := "http://" + way.address() + "/" + insert
	child := startShipping(t, path, to)
	for round := range 3 * killRounds {
		conn := way.moment(t)
		switch round % 3 {
		case 0:
			c.kill()
			conn.end()
			c.start(t)
			c.ask(t, stopMerges)
		case 1:
			conn.end()
		case 2:
			stopShipping(child)
			conn.end()
			child = startShipping(t, path, to)
		}
	}
	want := fmt.Sprintf("%d\t%d\n", all, all)
	var got string
	nettest.Eventually(t, patience, func() bool {
		got = c.ask(t, "SELECT count(), uniqExact(relay, epoch, id) FROM flows_once")
		return got == want
	}, func() string { return fmt.Sprintf("%q, want %q", got, want) })
	stopShipping(child)
	var rows int
	_, err := fmt.Sscan(c.ask(t, "SELECT count() FROM flows"), &rows)
	if err != nil || rows <= all {
		t.Errorf("%d rows came, none of them twice: the kills were at no moment that matters", rows)
	}
	t.Logf("%d kills: %d rows of %d records came", 3*killRounds, rows, all)
	compare(t, path, c.ask(t, "SELECT relay, epoch, id, ended_ms, bytes_up, bytes_down FROM flows_once ORDER BY epoch, id"))
}

// compare holds lines of rows against the records of a history: none is missing, none is there twice.
func compare(t *testing.T, path, lines string) {
	t.Helper()
	var want []byte
	for _, r := range spooled(t, path) {
		want = fmt.Appendf(want, "%s\t%d\t%d\t%d\t%d\t%d\n", r.Relay, r.Epoch, r.ID, r.End.UnixMilli(), r.BytesUp, r.BytesDown)
	}
	if string(want) != lines {
		t.Errorf("the view has %d bytes of lines, not those of the history with %d", len(lines), len(want))
	}
}

// spooled are all records of a history, in the order of their epochs and IDs.
func spooled(t *testing.T, path string) []history.Spooled {
	t.Helper()
	reader, err := history.OpenReader(path)
	nettest.Must(t, err)
	defer reader.Close()
	spool, err := reader.Spool(t.Context(), 0, 1<<30)
	nettest.Must(t, err)
	return spool.Records
}

// fillHistory makes a history of records that ended within the last hours.
func fillHistory(t *testing.T, path string, n int) {
	t.Helper()
	store, err := history.Open(path, history.Options{})
	nettest.Must(t, err)
	maker := synthetic.NewMaker(1)
	end := time.Now().Add(-12 * time.Hour)
	for n > 0 {
		var records []monitor.Record
		for range min(n, 5000) {
			records = append(records, maker.Record(end))
			end = end.Add(123 * time.Millisecond)
		}
		changed := store.Changed()
		store.Add(records)
		<-changed // the store drops what is too much at once
		n -= len(records)
	}
	nettest.Must(t, store.Close())
}

func startShipping(t *testing.T, path, to string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childHistory+"="+path, childTarget+"="+to)
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe() // stays open
	nettest.Must(t, err)
	nettest.Must(t, cmd.Start())
	t.Cleanup(func() { stopShipping(cmd) })
	return cmd
}

func stopShipping(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
}

// way forwards connections to a server, and stops one of them at a moment that was asked for.
type way struct {
	listener net.Listener
	server   string

	mu     sync.Mutex
	random *rand.Rand
	left   int        // bytes of requests until the moment; below 0: none is asked for
	answer bool       // the moment is that of the next answer after them
	at     chan *pipe // has room for one
}

func newWay(t *testing.T, server string) *way {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	nettest.Must(t, err)
	w := &way{listener: listener, server: server, random: rand.New(rand.NewPCG(1, uint64(killRounds))), left: -1, at: make(chan *pipe, 1)}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go w.carry(conn)
		}
	}()
	return w
}

func (w *way) address() string { return w.listener.Addr().String() }

// moment waits for one that is chosen at random, and returns the connection that stands still in it.
func (w *way) moment(t *testing.T) *pipe {
	t.Helper()
	w.mu.Lock()
	w.left, w.answer = w.random.IntN(600_000), w.random.IntN(2) == 0
	w.mu.Unlock()
	select {
	case p := <-w.at:
		return p
	case <-time.After(patience):
		t.Fatal("nothing is shipped")
		return nil
	}
}

// reached is whether these bytes bring the moment.
func (w *way) reached(n int, answer bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left < 0 {
		return false
	}
	if !answer {
		w.left = max(w.left-n, 0)
	}
	if w.left == 0 && w.answer == answer {
		w.left = -1
		return true
	}
	return false
}

// pipe is a connection on its way.
type pipe struct{ client, server net.Conn }

func (p *pipe) end() {
	p.client.Close()
	p.server.Close()
}

func (w *way) carry(client net.Conn) {
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		client.Close()
		return
	}
	p := &pipe{client, server}
	copyAll := func(to, from net.Conn, answer bool) {
		for piece := make([]byte, 4096); ; {
			n, err := from.Read(piece)
			if n > 0 && w.reached(n, answer) {
				w.at <- p // whoever waits for it ends it
				return
			}
			if n > 0 {
				_, _ = to.Write(piece[:n])
			}
			if err != nil {
				p.end()
				return
			}
		}
	}
	go copyAll(server, client, false)
	copyAll(client, server, true)
}
