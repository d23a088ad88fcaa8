package cc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/fstest"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/ccnames"
	"longhaul/test/nettest"
)

// renamed is hybla as an algorithm of another name, of five letters.
func renamed(t *testing.T, name string) fs.FS {
	t.Helper()
	b, err := fs.ReadFile(NewHost(testBy).Objects, "hybla_"+byteOrder+".o")
	must(t, err)
	field := func(name string) []byte { return append([]byte(name), make([]byte, maxName+1-len(name))...) }
	if n := bytes.Count(b, field("hybla")); n != 1 {
		t.Fatalf("the object has the name %d times", n)
	}
	return fstest.MapFS{name + "_" + byteOrder + ".o": {Data: bytes.Replace(b, field("hybla"), field(name), 1)}}
}

// TestSecondName has another owner take the first name of an algorithm. The error names
// the second one, and so does the list; it loads and unloads like a first one.
func TestSecondName(t *testing.T) {
	eachWay(t, func(t *testing.T, h *Host) {
		other := otherHost(t, h)
		h.abandonedPatience = 0
		first := fmt.Sprintf("t%04x", rand.Uint32()&0xffff)
		second := ccnames.Second(first)
		h.Objects = renamed(t, first)
		if a, _ := describe(t, h, first); a.State != Loadable {
			t.Errorf("listed as %+v", a)
		}
		if _, ok := describe(t, h, second); ok {
			t.Error("the second name is listed beside a free first one")
		}
		_, err := other.Load(context.Background(), "illinois", first)
		must(t, err)
		defer func() {
			_, err := other.Unload(context.Background(), first)
			must(t, err)
		}()

		var taken *TakenError
		if _, err := h.Load(context.Background(), first, first); !errors.As(err, &taken) || taken.Second != second {
			t.Errorf("load the first name: %v, %+v", err, taken)
		}
		if a, _ := describe(t, h, second); a.State != Loadable || a.Algorithm != first || a.Origin != FromLonghaul {
			t.Errorf("listed as %+v", a)
		}
		if names, err := h.Offered(); err != nil || !slices.Equal(names, []string{second}) {
			t.Errorf("offered: %v, %v", names, err)
		}
		book, err := ledger.Open(h.Ledger, false)
		must(t, err)
		_, err = h.HoldIn(context.Background(), book, second) // as a use does
		book.Close()
		must(t, err)
		if result, err := h.Load(context.Background(), second, second); err != nil || result.Outcome != Already {
			t.Errorf("load the second name: %+v, %v", result, err)
		}
		if a, _ := describe(t, h, second); a.State != Ready || a.Algorithm != first || a.Outdated {
			t.Errorf("listed as %+v", a)
		}
		if a, _ := describe(t, h, first); a.Origin != FromKernel || a.State != Ready {
			t.Errorf("the other's is listed as %+v", a)
		}
		if _, err := h.Load(context.Background(), first, first); !errors.As(err, &taken) || taken.Second != "" {
			t.Errorf("both names are taken: %v, %+v", err, taken)
		}
		l, _ := listen(t, loopback, nil)
		conn, err := dial(l.Addr().String(), withAlgorithm(second))
		must(t, err)
		defer conn.Close()
		deliver(t, conn, 1<<20)
		if result, err := h.Unload(context.Background(), second); err != nil || result.Outcome != Unloaded {
			t.Errorf("unload: %+v, %v", result, err)
		}
	})
}

func TestIsOwn(t *testing.T) {
	h := NewHost(testBy)
	for name, want := range map[string]bool{"hybla": true, "lh_hybla": true, "lh_lh_hybla": false, "lh_bbr": false, "cubic": false, "": false, "lh_": false} {
		if got := h.IsOwn(name); got != want {
			t.Errorf("%q is longhaul's: %v, want %v", name, got, want)
		}
	}
	all, err := h.AllNames()
	must(t, err)
	for _, name := range all {
		if !h.IsOwn(name) || !slices.Contains(h.Known(), name) {
			t.Errorf("%s is unknown", name)
		}
	}
}

func TestKnown(t *testing.T) {
	known := NewHost(ledger.By{}).Known()
	for name, want := range map[string]bool{"cubic": true, "westwood": true, "haul": true, "lh_haul": true, "lh_cubic": false, "nosuch": false, "bbrr": false, "": false} {
		if got := slices.Contains(known, name); got != want {
			t.Errorf("%q is known: %v, want %v", name, got, want)
		}
	}
	available, err := Available()
	nettest.Must(t, err)
	for _, name := range available {
		if !slices.Contains(known, name) {
			t.Errorf("the kernel's %s is unknown", name)
		}
	}
}
