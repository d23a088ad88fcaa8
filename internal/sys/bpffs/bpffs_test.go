package bpffs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"longhaul/test/nettest"
)

// The tests use ordinary directories, which need no privilege.
func testDir(t *testing.T) Dir { return Dir{Root: t.TempDir(), Feature: "test"} }

// TestLockContended removes and makes the directories while other goroutines
// lock them.
func TestLockContended(t *testing.T) {
	one := testDir(t)
	other := Dir{Root: one.Root, Feature: "other"}
	var all sync.WaitGroup
	var holders [2]atomic.Int32
	for i := range 8 {
		all.Go(func() {
			d, holders := []Dir{one, other}[i%2], &holders[i%2]
			for range 250 {
				unlock, err := d.Lock(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				holders.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(one.Root); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestLockKeepsPins(t *testing.T) {
	d := testDir(t)
	unlock, err := d.Lock(context.Background())
	nettest.Must(t, err)
	nettest.Must(t, os.Mkdir(d.Path("pinned"), 0o700))
	unlock()
	if names, err := d.Names(); err != nil || len(names) != 1 || names[0] != "pinned" {
		t.Errorf("names %v, %v", names, err)
	}
}

// TestLockRefused: Lock fails in time while another process holds the lock.
func TestLockRefused(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(t *testing.T, d Dir)
		want string
	}{
		{"held", func(t *testing.T, d Dir) {
			unlock, err := d.Lock(context.Background())
			nettest.Must(t, err)
			t.Cleanup(unlock)
		}, "another process holds the lock"},
		{"a file is in the way", func(t *testing.T, d Dir) {
			nettest.Must(t, os.WriteFile(filepath.Dir(d.Path()), nil, 0o600))
		}, "make the directory of pins"},
		{"a link to nowhere is in the way", func(t *testing.T, d Dir) {
			nettest.Must(t, os.Symlink("nowhere", filepath.Dir(d.Path())))
		}, "make the directory of pins"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := testDir(t)
			test.make(t, d)
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			_, err := d.Lock(ctx)
			if err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
