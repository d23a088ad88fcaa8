package nettest

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// CheckLeaks fails the test if, after it and its later cleanups, more
// goroutines or descriptors exist than at the call. Parallel tests must not use
// it.
func CheckLeaks(t testing.TB) {
	t.Helper()
	// The runtime opens its poller with the first pipe or socket and keeps it.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	t.Cleanup(func() {
		Eventually(t, 30*time.Second, func() bool {
			return runtime.NumGoroutine() <= goroutines && len(openDescriptors(t)) <= len(descriptors)
		}, func() string {
			var b strings.Builder
			for fd, target := range openDescriptors(t) {
				if descriptors[fd] != target {
					b.WriteString("descriptor " + fd + " -> " + target + "\n")
				}
			}
			stacks := make([]byte, 1<<20)
			return "leaked:\n" + b.String() + string(stacks[:runtime.Stack(stacks, true)])
		})
	})
}

// Eventually polls cond until it holds, and fails the test with what after
// within.
func Eventually(t testing.TB, within time.Duration, cond func() bool, what func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not so within %v: %s", within, what())
		}
		time.Sleep(5 * time.Millisecond)
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
func openDescriptors(t testing.TB) map[string]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[string]string, len(entries))
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil { // the descriptor of this listing
			continue
		}
		open[entry.Name()] = target
	}
	return open
}
