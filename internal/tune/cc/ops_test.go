package cc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/ledger"
)

// unlinkedHost registers without links.
func unlinkedHost(t *testing.T) *Host {
	t.Helper()
	h := testHost(t)
	h.unlinked = true
	return h
}

// TestOrphan removes the pins of a registered algorithm, which does not unregister it
// without a link. The host that has loaded it lists, replaces and unloads it; to
// another host it is somebody else's.
func TestOrphan(t *testing.T) {
	t.Parallel()
	h := unlinkedHost(t)
	other := otherHost(t, h)
	other.abandonedPatience, h.abandonedPatience = 0, 0
	orphaned := func(t *testing.T) string {
		t.Helper()
		name := load(t, h, "hybla")
		must(t, os.RemoveAll(h.dir()))
		if !isRegistered(t, name) {
			t.Fatal("removing the pins has unregistered it")
		}
		return name
	}
	name := orphaned(t)
	if a, _ := describe(t, h, name); a.Origin != FromLonghaul || a.State != Ready || a.Why == "" {
		t.Errorf("listed as %+v", a)
	}
	if a, _ := describe(t, other, name); a.Origin != FromKernel || a.State != Ready {
		t.Errorf("another host lists %+v", a)
	}
	if _, err := other.Load(context.Background(), "hybla", name); !errors.Is(err, ErrTaken) {
		t.Errorf("another host loads it: %v", err)
	}
	if _, err := other.Unload(context.Background(), name); !errors.Is(err, ErrTaken) || !isRegistered(t, name) {
		t.Errorf("another host unloads it: %v", err)
	}
	look := *h
	look.DryRun = true
	if result, err := look.Load(context.Background(), "hybla", name); err != nil || result.Outcome != Loaded {
		t.Errorf("a look at loading it: %+v, %v", result, err)
	}
	if result, err := look.Unload(context.Background(), name); err != nil || result.Outcome != Cleared || !isRegistered(t, name) {
		t.Errorf("a look at unloading it: %+v, %v", result, err)
	}
	if result, err := h.Load(context.Background(), "hybla", name); err != nil || result.Outcome != Loaded {
		t.Errorf("load again: %+v, %v", result, err)
	}
	if a, _ := describe(t, h, name); a.State != Ready || a.Why != "" {
		t.Errorf("then listed as %+v", a)
	}
	name = orphaned(t)
	if result, err := h.Unload(context.Background(), name); err != nil || result.Outcome != Cleared || isRegistered(t, name) {
		t.Errorf("unload: %+v, %v", result, err)
	}
}

// TestReplacedBeforeRename completes a replacement that was killed between the
// registration of the new map and the rename of its pin.
func TestReplacedBeforeRename(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"load", "replace", "unload"} {
		t.Run(then, func(t *testing.T) {
			h := unlinkedHost(t)
			name := load(t, h, "hybla")
			must(t, os.Rename(h.dir(name, opsPin), h.dir(name, nextOpsPin)))
			pinOps(t, h, name, opsPin) // the former, without its value
			if a, _ := describe(t, h, name); a.State != Ready || a.Why != "" {
				t.Errorf("listed as %+v", a)
			}
			want := Already
			if then == "replace" {
				h.Objects, want = otherBuild(h), Replaced
			}
			if then != "unload" {
				if result, err := h.Load(context.Background(), "hybla", name); err != nil || result.Outcome != want {
					t.Errorf("load: %+v, %v", result, err)
				}
				if left, err := h.pins().Exists(name, nextOpsPin); err != nil || left {
					t.Errorf("the pin of the replacement is left: %v, %v", left, err)
				}
			}
			if result, err := h.Unload(context.Background(), name); err != nil || result.Outcome != Unloaded || isRegistered(t, name) {
				t.Errorf("unload: %+v, %v", result, err)
			}
		})
	}
}

// TestReplaceFails has another owner take the name between the two steps of a
// replacement, and the kernel refuse the new table.
func TestReplaceFails(t *testing.T) {
	t.Parallel()
	h := unlinkedHost(t)
	newer := *h
	newer.Objects = otherBuild(h)

	t.Run("taken", func(t *testing.T) {
		other := otherHost(t, h)
		name := load(t, h, "hybla")
		newer := newer
		newer.betweenOps = func() {
			_, err := other.Load(context.Background(), "illinois", name)
			must(t, err)
		}
		_, err := newer.Load(context.Background(), "hybla", name)
		if !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "the former "+name+" is unloaded and cannot return") {
			t.Errorf("%v", err)
		}
		if a, _ := describe(t, h, name); a.Origin != FromKernel || a.Why == "" {
			t.Errorf("listed as %+v", a)
		}
		if _, err := h.Unload(context.Background(), name); err != nil || !isRegistered(t, name) {
			t.Errorf("clearing the pins: %v; the other's is registered: %v", err, isRegistered(t, name))
		}
		_, err = other.Unload(context.Background(), name)
		must(t, err)
	})

	t.Run("refused", func(t *testing.T) {
		name := load(t, h, "hybla")
		k, err := readKernelTypes()
		must(t, err)
		o, err := h.object("hybla")
		must(t, err)
		must(t, o.prepare())
		next, err := newOps(o.table) // not tried
		must(t, err)
		defer next.Close()
		nothing := make([]byte, k.value.Size) // a table without functions
		must(t, k.setName(nothing, name))
		if err := h.swapOps(name, o, next, nothing); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%v", err)
		}
		if a, _ := describe(t, h, name); a.State != Ready || a.Why != "" || a.Outdated {
			t.Errorf("the former is listed as %+v", a)
		}
		l, _ := listen(t, loopback, nil)
		conn, err := dial(l.Addr().String(), withAlgorithm(name))
		must(t, err)
		defer conn.Close()
		deliver(t, conn, 1<<20)
		if result, err := newer.Load(context.Background(), "hybla", name); err != nil || result.Outcome != Replaced {
			t.Errorf("replace the restored one: %+v, %v", result, err)
		}
	})
}

// TestLooksRegisterNothing watches the kernel's table during what only looks.
func TestLooksRegisterNothing(t *testing.T) {
	eachWayAtOnce(t, func(t *testing.T, h *Host) {
		seen := map[string]bool{}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				names, _ := Available()
				for _, name := range names {
					seen[name] = true
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		names, err := h.Names()
		must(t, err)
		look := *h
		look.DryRun = true
		tried := map[string]bool{}
		for _, algorithm := range names {
			if paces, err := bpfPaces(); err != nil || !paces && mustPace(algorithm) {
				must(t, err)
				continue // this kernel refuses them
			}
			name := testName()
			tried[name] = true
			o, err := h.object(algorithm) // as List does
			must(t, err)
			must(t, o.prepare())
			must(t, o.rename(name))
			must(t, o.tryOut())
			if result, err := look.Load(context.Background(), algorithm, name); err != nil || result.Outcome != Loaded {
				t.Errorf("%s: %+v, %v", algorithm, result, err)
			}
		}
		close(stop)
		<-stopped
		for name := range seen {
			if tried[name] {
				t.Errorf("%s was registered", name)
			}
		}
		if left, err := h.LoadedNames(); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// TestKernelRefusesTable tries a table with two functions in each other's place: the
// error names the remedy, and nothing is registered.
func TestKernelRefusesTable(t *testing.T) {
	h := unlinkedHost(t)
	o, err := h.object("hybla")
	must(t, err)
	must(t, o.prepare())
	collection, err := o.intoKernel("")
	must(t, err)
	defer collection.Close()
	k, err := readKernelTypes()
	must(t, err)
	must(t, o.tryOps(k, collection.Programs))
	p := collection.Programs
	p["hybla_ssthresh"], p["hybla_undo_cwnd"] = p["hybla_undo_cwnd"], p["hybla_ssthresh"]
	const want = "loading congestion control hybla needs a kernel that takes all of its functions as BPF struct_ops (Linux 6.0)"
	if err := o.tryOps(k, p); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// TestOthersMaps holds that maps of other owners are never taken for orphans.
func TestOthersMaps(t *testing.T) {
	h := unlinkedHost(t)
	name := testName()
	book, err := ledger.Open(h.Ledger, false)
	must(t, err)
	defer book.Close()
	record(book, name, nil)
	o, err := h.object("hybla")
	must(t, err)
	must(t, o.prepare())
	must(t, o.rename(name))
	collection, err := o.intoKernel("")
	must(t, err)
	defer collection.Close()
	k, err := readKernelTypes()
	must(t, err)
	value, err := o.value(k, collection.Programs)
	must(t, err)
	table := o.table.Copy()
	table.Name, table.Flags, table.Contents = "somebody", 0, nil
	m, err := ebpf.NewMap(table)
	must(t, err)
	defer m.Close()
	must(t, putOps("hybla", name, m, value))
	if found, err := recordedOrphan(book, name); err != nil || found != nil {
		t.Errorf("%v, %v", found, err)
	}
	must(t, unregisterOps(m))
	must(t, unregisterOps(m)) // again
	if _, err := os.Stat(h.dir(name)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
