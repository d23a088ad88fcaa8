package nettest

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patienceForLeaks is how long goroutines and descriptors may take to end after a test.
const patienceForLeaks = 30 * time.Second

// CheckLeaks fails the test if, after it and its later cleanups, more
// goroutines or descriptors exist than at the call. Parallel tests must not use
// it.
func CheckLeaks(t testing.TB) {
	t.Helper()
	before := holdings()
	t.Cleanup(func() { Eventually(t, patienceForLeaks, before.noneLeaked, before.leaked) })
}

// RunWithoutLeaks runs a package's tests and returns their exit status, which is 1 if
// more goroutines or descriptors exist after them. It is for packages with parallel tests;
// -run finds the test that leaks.
func RunWithoutLeaks(m *testing.M) (status int) {
	before := holdings()
	status = m.Run()
	for deadline := time.Now().Add(patienceForLeaks); status == 0 && !before.noneLeaked(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, before.leaked())
			status = 1
		}
	}
	return status
}

// held is what a process holds.
type held struct {
	goroutines  int
	descriptors map[string]string // their targets
}

func holdings() held {
	// The runtime opens its poller with the first pipe or socket and keeps it.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	return held{runtime.NumGoroutine(), openDescriptors()}
}

// noneLeaked reports whether there is no more now.
func (h held) noneLeaked() bool {
	open := openDescriptors()
	if runtime.NumGoroutine() > h.goroutines {
		return false
	}
	if len(open) <= len(h.descriptors) {
		return true
	}
	// io.Copy between sockets keeps its pipes in a pool, which two collections empty. An idle
	// process begins none.
	maps.DeleteFunc(open, func(fd, target string) bool {
		return h.descriptors[fd] == target || strings.HasPrefix(target, "pipe:")
	})
	if len(open) == 0 {
		runtime.GC()
	}
	return false
}

// leaked describes what there is more now.
func (h held) leaked() string {
	var b strings.Builder
	for fd, target := range openDescriptors() {
		if h.descriptors[fd] != target {
			b.WriteString("descriptor " + fd + " -> " + target + "\n")
		}
	}
	stacks := make([]byte, 1<<20)
	return "leaked:\n" + b.String() + string(stacks[:runtime.Stack(stacks, true)])
}

// The pauses between two looks of Eventually, and of Repeatedly.
const (
	minPause  = 2 * time.Millisecond
	maxPause  = 25 * time.Millisecond
	evenPause = 5 * time.Millisecond
)

// Eventually polls cond until it holds, and fails the test with what after
// within. A look may cost a relay's status or a call of a browser: the pauses grow, so
// that tests that wait for seconds leave the CPUs to what they wait for.
func Eventually(t testing.TB, within time.Duration, cond func() bool, what func() string) {
	t.Helper()
	poll(t, within, minPause, maxPause, cond, what)
}

// Repeatedly is Eventually for a cond that counts its looks, or does a part of the work at
// each: the pauses do not grow.
func Repeatedly(t testing.TB, within time.Duration, cond func() bool, what func() string) {
	t.Helper()
	poll(t, within, evenPause, evenPause, cond, what)
}

func poll(t testing.TB, within, first, last time.Duration, cond func() bool, what func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := first; !cond(); pause = min(pause+pause/8, last) {
		if time.Now().After(deadline) {
			t.Fatalf("not so within %v: %s", within, what())
		}
		time.Sleep(pause)
	}
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openDescriptors maps this process's descriptors to their targets.
func openDescriptors() map[string]string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	open := make(map[string]string, len(entries))
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil || claimed(entry.Name()) { // the descriptor of this listing
			continue
		}
		open[entry.Name()] = target
	}
	return open
}
