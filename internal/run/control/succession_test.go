package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"longhaul/test/nettest"
)

// says starts a server with a text as its status.
func says(t *testing.T, listen func(context.Context, string) (net.Listener, error), path, text string) *Server {
	t.Helper()
	l, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, quiet, Handlers{Status: func() any { return text }})
	t.Cleanup(s.Close)
	return s
}

func ask1(t *testing.T, path string) string {
	t.Helper()
	body, err := Status(t.Context(), path)
	if err != nil {
		return err.Error()
	}
	return strings.Trim(string(body), "\"\n")
}

// TestSuccession replaces one server by another while clients send requests.
// Every request gets an answer, and both servers are reachable in the end.
func TestSuccession(t *testing.T) {
	nettest.CheckLeaks(t)
	path := filepath.Join(t.TempDir(), "control.sock")
	old := says(t, Listen, path, "old")
	done := make(chan struct{})
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := Status(context.Background(), path); err != nil {
					t.Errorf("nobody answers: %v", err)
					return
				}
			}
		})
	}
	// Both servers have this process's ID, so rename the old one.
	aside := path + ".1"
	const rounds = 20
	for i := range rounds {
		if err := old.socket.names.link(path, aside); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint(i)
		next := says(t, ListenAside, path, name)
		if err := next.TakePlace(path); err != nil {
			t.Fatal(err)
		}
		if err := old.LeavePlace(path); err != nil {
			t.Fatal(err)
		}
		if a, b := ask1(t, path), ask1(t, aside); a != name || b == name {
			t.Fatalf("%s answers at the place, %s aside", a, b)
		}
		old.Close()
		if _, err := os.Lstat(aside); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the old one left its second name: %v", err)
		}
		old = next
	}
	close(done)
	clients.Wait()
	if got := ask1(t, path); got != fmt.Sprint(rounds-1) {
		t.Errorf("after all %s", got)
	}
}

// TestSuccessionThatFails restores the old server, even if the new one had
// taken its place.
func TestSuccessionThatFails(t *testing.T) {
	nettest.CheckLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "control.sock")
	old := says(t, Listen, path, "old")
	for _, taken := range []bool{false, true} {
		if err := old.StepAside(path); err != nil {
			t.Fatal(err)
		}
		if err := old.StepAside(path); err != nil { // again
			t.Fatal(err)
		}
		if got := ask1(t, PathOf(path, os.Getpid())); got != "old" {
			t.Errorf("aside %s answers", got)
		}
		if taken { // by one that was killed
			dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".new", Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			dead.SetUnlinkOnClose(false)
			dead.Close()
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}
		if err := old.StepBack(path); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 || ask1(t, path) != "old" {
			t.Errorf("taken %v: %v, %v, and %s answers", taken, entries, err, ask1(t, path))
		}
	}
	old.Close()
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestCloseLeavesOthersSockets: a server that was replaced without StepAside
// does not remove the other's socket.
func TestCloseLeavesOthersSockets(t *testing.T) {
	nettest.CheckLeaks(t)
	path := filepath.Join(t.TempDir(), "control.sock")
	old := says(t, Listen, path, "old")
	next := says(t, ListenAside, path, "new")
	if err := next.TakePlace(path); err != nil {
		t.Fatal(err)
	}
	old.Close()
	if got := ask1(t, path); got != "new" {
		t.Errorf("%s answers", got)
	}
}

func TestFollowedRelaysThatWereKilled(t *testing.T) {
	nettest.CheckLeaks(t)
	path := filepath.Join(t.TempDir(), "control.sock")
	leave := func(name string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	leave(path + ".12")
	leave(path + ".old")
	alive, err := net.Listen("unix", path+".13")
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if err := os.WriteFile(path+".14", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, Listen, path, "new")
	for name, want := range map[string]bool{".12": false, ".old": true, ".13": true, ".14": true} {
		if _, err := os.Lstat(path + name); (err == nil) != want {
			t.Errorf("%s: there %v, want %v", name, err == nil, want)
		}
	}
}

func TestPathsThatAreTooLong(t *testing.T) {
	dir, err := os.MkdirTemp("", "lh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, strings.Repeat("x", maxPath-len(dir)-1))
	s := says(t, Listen, path, "at the limit")
	if err := s.StepAside(path); err == nil || !strings.Contains(err.Error(), "choose a shorter one") {
		t.Errorf("got %v", err)
	}
	if _, err := ListenAside(t.Context(), path); err == nil || !strings.Contains(err.Error(), "choose a shorter one") {
		t.Errorf("got %v", err)
	}
	if _, err := Listen(t.Context(), path+"x"); err == nil || !strings.Contains(err.Error(), "choose a shorter one") {
		t.Errorf("got %v", err)
	}
	if got := ask1(t, path); got != "at the limit" {
		t.Errorf("%s answers", got)
	}
}
