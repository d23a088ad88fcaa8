package cc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/ccnames"
	"longhaul/test/nettest"
)

// TestEveryAlgorithm holds that the verifier takes every program of every
// object, in both variants of cong_control.
func TestEveryAlgorithm(t *testing.T) {
	t.Parallel()
	h := testHost(t)
	names, err := h.Names()
	must(t, err)
	if want := ccnames.Own(); !slices.Equal(names, want) {
		t.Errorf("the objects are of %v, the list has %v", names, want)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			requireAlgorithm(t, name)
			o, err := h.object(name)
			must(t, err)
			must(t, o.prepare())
			must(t, o.tryOut())
			if summary(name) == "" {
				t.Error("it has no summary")
			}
		})
		t.Run(name+before610, func(t *testing.T) {
			requireAlgorithm(t, name)
			types, err := readKernelTypes()
			must(t, err)
			o, err := h.object(name)
			must(t, err)
			before := types
			before.arguments = 2
			must(t, o.adapt(before))
			for key, p := range o.spec.Programs {
				if types.arguments == 4 && strings.HasSuffix(key, before610) {
					rateSampleFourth(p)
				}
			}
			must(t, o.tryOut())
		})
	}
}

// TestReduced has the verifier refuse a program that has a variant for that case.
func TestReduced(t *testing.T) {
	eachWay(t, func(t *testing.T, h *Host) {
		o, err := h.object("hybla")
		must(t, err)
		must(t, o.prepare())
		refuse(o, "_init")
		name := testName()
		if result, err := h.loadObject(t, o, name); err != nil || result.Outcome != Loaded ||
			len(result.Notes) != 1 || !strings.HasPrefix(result.Notes[0], "hybla works without pacing: ") {
			t.Errorf("%+v, %v", result, err)
		}
		l, _ := listen(t, loopback, nil)
		conn, err := dial(l.Addr().String(), withAlgorithm(name))
		must(t, err)
		defer conn.Close()
		deliver(t, conn, 1<<20)
		_, err = h.Unload(context.Background(), name)
		must(t, err)
	})
}

// loadObject loads a prepared object.
func (h *Host) loadObject(t *testing.T, o *object, name string) (LoadResult, error) {
	t.Helper()
	unlock, err := h.pins().Lock(context.Background())
	must(t, err)
	defer unlock()
	return h.load(t.Context(), o, name)
}

// refuse makes the verifier refuse a program.
func refuse(o *object, suffix string) {
	for _, p := range o.spec.Programs {
		if strings.HasSuffix(p.Name, suffix) {
			p.Instructions = asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 4096, asm.DWord), asm.Return()}
		}
	}
}

// rateSampleFourth has a program for kernels before 6.10 read its second
// argument where later kernels have it, so that their verifier can see the
// rest of it.
func rateSampleFourth(p *ebpf.ProgramSpec) {
	for i := range p.Instructions {
		ins := &p.Instructions[i]
		if i < 8 && ins.OpCode.Class() == asm.LdXClass && ins.OpCode.Size() == asm.DWord && ins.Offset == 8 {
			ins.Offset = 24
		}
	}
}

func TestLoadAndUnload(t *testing.T) { eachWay(t, testLoadAndUnload) }

func testLoadAndUnload(t *testing.T, h *Host) {
	nettest.CheckLeaks(t)
	ctx := context.Background()
	for _, algorithm := range []string{"hybla", "brutal"} {
		requireAlgorithm(t, algorithm)
		name := testName()
		if a, ok := describe(t, h, name); ok {
			t.Fatalf("before: %+v", a)
		}
		if a, ok := describe(t, h, algorithm); !ok || a.State != Loadable || a.Origin != FromLonghaul {
			t.Logf("%s is %+v: somebody else has it", algorithm, a)
		}
		begun := time.Now().Truncate(time.Second) // as the record has it
		result, err := h.Load(ctx, algorithm, name)
		must(t, err)
		if result.Outcome != Loaded || len(result.Notes) != wantNotes(t, algorithm) {
			t.Errorf("load: %+v", result)
		}
		if a, ok := describe(t, h, name); !ok || a.State != Ready || a.Origin != FromLonghaul || a.Algorithm != algorithm ||
			a.LoadedAt == nil || a.LoadedAt.Before(begun) || a.LoadedAt.After(time.Now()) || a.Outdated || a.Restricted || a.Default || a.Why != "" {
			t.Errorf("loaded: %+v", a)
		}
		if !isRegistered(t, name) {
			t.Error("the kernel does not have it")
		}
		if result, err := h.Load(ctx, algorithm, name); err != nil || result.Outcome != Already {
			t.Errorf("load again: %+v, %v", result, err)
		}
		if _, err := h.Load(ctx, "illinois", name); err == nil || !strings.Contains(err.Error(), algorithm+" is loaded as "+name) {
			t.Errorf("another under its name: %v", err)
		}
		if result, err := h.Unload(ctx, name); err != nil || result.Outcome != Unloaded || result.StillRegistered {
			t.Errorf("unload: %+v, %v", result, err)
		}
		if isRegistered(t, name) {
			t.Error("the kernel still has it")
		}
		if _, ok := describe(t, h, name); ok {
			t.Error("it is still listed")
		}
	}
	if result, err := h.Unload(ctx, "hybla"); err != nil && !errors.Is(err, ErrTaken) || result.Outcome != Nothing {
		t.Errorf("unload what is not loaded: %+v, %v", result, err)
	}
}

// TestDefault sets the default of a namespace that is not the machine's first,
// which an algorithm must allow by its flags.
func TestDefault(t *testing.T) {
	h := testHost(t) // in a namespace of its own
	ctx := context.Background()
	before, err := ReadDefault()
	must(t, err)
	one, two := load(t, h, "hybla"), load(t, h, "illinois")

	must(t, h.SetDefault(ctx, one))
	l, _ := listen(t, loopback, nil)
	conn, err := dial(l.Addr().String(), nil)
	must(t, err)
	defer conn.Close()
	if got := algorithmOf(t, conn); got != one {
		t.Errorf("a new connection has %s", got)
	}
	if a, _ := describe(t, h, one); !a.Default {
		t.Errorf("listed as %+v", a)
	}
	// Two in a row are undone to what was before both, in whatever order.
	must(t, h.SetDefault(ctx, two))
	result, err := h.Unload(ctx, one)
	must(t, err)
	if now, _ := ReadDefault(); result.Default != "" || now != two {
		t.Errorf("unloading the one that is not the default: %+v, and it is %s", result, now)
	}
	result, err = h.Unload(ctx, two)
	must(t, err)
	if now, _ := ReadDefault(); result.Default != before || now != before {
		t.Errorf("unloading the default: %+v, and it is %s, want %s", result, now, before)
	}

	// What somebody else has chosen meanwhile stays.
	three := load(t, h, "hybla")
	must(t, h.SetDefault(ctx, three))
	must(t, writeDefault("reno"))
	result, err = h.Unload(ctx, three)
	must(t, err)
	if now, _ := ReadDefault(); result.Default != "" || now != "reno" {
		t.Errorf("%+v, and the default is %s, want reno", result, now)
	}
	must(t, writeDefault(before))
}

// TestUnloadInUse holds that connections keep an unloaded algorithm, sockets
// that listen with it hand it on, and new sockets cannot have it.
func TestUnloadInUse(t *testing.T) { eachWayAtOnce(t, testUnloadInUse) }

func testUnloadInUse(t *testing.T, h *Host) {
	name := testName()
	_, err := h.Load(context.Background(), "illinois", name)
	must(t, err)
	l, _ := listen(t, loopback, withAlgorithm(name))
	conn, err := dial(l.Addr().String(), withAlgorithm(name))
	must(t, err)
	defer conn.Close()
	counts, err := SocketCounts()
	must(t, err)
	nettest.Eventually(t, patience, func() bool {
		counts, err = SocketCounts()
		return err == nil && counts[name] == 2 // both ends
	}, func() string { return "connections are counted as " + strings.Join(keys(counts), " ") })

	result, err := h.Unload(context.Background(), name)
	must(t, err)
	if result.Outcome != Unloaded || result.Sockets != 2 || result.StillRegistered {
		t.Errorf("%+v", result)
	}
	if isRegistered(t, name) {
		t.Error("still registered")
	}
	if is := algorithmOf(t, conn); is != name {
		t.Errorf("the connection has %s now", is)
	}
	deliver(t, conn, 1<<20)
	if conn, err := dial(l.Addr().String(), withAlgorithm(name)); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a new socket could choose it: %v, %v", conn, err)
	}
	// It can be loaded again while the old one is still in use.
	again, err := h.Load(context.Background(), "illinois", name)
	if err != nil || again.Outcome != Loaded {
		t.Errorf("load again: %+v, %v", again, err)
	}
	fresh, err := dial(l.Addr().String(), withAlgorithm(name))
	must(t, err)
	defer fresh.Close()
	deliver(t, fresh, 1<<20)
	deliver(t, conn, 1<<20)
	_, err = h.Unload(context.Background(), name)
	must(t, err)
}

func keys(m map[string]int) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}

// otherBuild are the objects of h with bytes at their ends, which no loader
// reads: another build.
func otherBuild(h *Host) fs.FS {
	other := fstest.MapFS{}
	files, err := fs.Glob(h.Objects, "*.o")
	for _, file := range files {
		b, readErr := fs.ReadFile(h.Objects, file)
		err = errors.Join(err, readErr)
		other[file] = &fstest.MapFile{Data: append(b, 0)}
	}
	if err != nil {
		panic(err) // they are in memory
	}
	return other
}

func TestReplace(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"hybla", "brutal"} {
		t.Run(algorithm, func(t *testing.T) {
			eachWayAtOnce(t, func(t *testing.T, h *Host) {
				name := load(t, h, algorithm)
				l, _ := listen(t, loopback, nil)
				conn, err := dial(l.Addr().String(), withAlgorithm(name))
				must(t, err)
				defer conn.Close()

				newer := *h
				newer.Objects = otherBuild(h)
				if a, _ := describe(t, &newer, name); !a.Outdated {
					t.Errorf("the newer program lists %+v", a)
				}
				result, err := newer.Load(context.Background(), algorithm, name)
				if err != nil || result.Outcome != Replaced || len(result.Notes) != wantNotes(t, algorithm) {
					t.Fatalf("%+v, %v", result, err)
				}
				if a, _ := describe(t, &newer, name); a.Outdated || a.State != Ready {
					t.Errorf("then: %+v", a)
				}
				if result, err = newer.Load(context.Background(), algorithm, name); err != nil || result.Outcome != Already {
					t.Errorf("again: %+v, %v", result, err)
				}
				deliver(t, conn, 16<<10) // brutal has 1 Mb/s where nobody tells it a rate
				fresh, err := dial(l.Addr().String(), withAlgorithm(name))
				must(t, err)
				defer fresh.Close()
				deliver(t, fresh, 16<<10)
			})
		})
	}
}

// TestReplacedWithoutRecord has a replacement killed before it records its build: a load
// of either build replaces it.
func TestReplacedWithoutRecord(t *testing.T) {
	eachWayAtOnce(t, func(t *testing.T, h *Host) {
		name := load(t, h, "hybla")
		b, err := h.readBuild(name)
		must(t, err)
		newer := *h
		newer.Objects = otherBuild(h)
		o, err := newer.object("hybla")
		must(t, err)
		must(t, o.prepare())
		must(t, o.rename(name))
		collection, err := o.intoKernel(h.dir(name))
		must(t, err)
		defer collection.Close()
		must(t, h.replace(name, o, collection, build{b.algorithm, [32]byte{}, b.loadedAt}))
		for _, loads := range []*Host{h, &newer} {
			if a, _ := describe(t, loads, name); !a.Outdated || a.State != Ready {
				t.Errorf("listed as %+v", a)
			}
			if result, err := loads.Load(context.Background(), "hybla", name); err != nil || result.Outcome != Replaced {
				t.Errorf("%+v, %v", result, err)
			}
		}
	})
}

// TestTaken holds that a name of the kernel's, or of another program's BPF, is
// left alone.
func TestTaken(t *testing.T) {
	eachWay(t, nameTaken)
}

func nameTaken(t *testing.T, h *Host) {
	other := otherHost(t, h)
	h.abandonedPatience = 10 * time.Millisecond // nobody gives them up
	name := load(t, other, "hybla")             // pinned where h does not look
	for _, taken := range []string{"reno", name} {
		if _, err := h.Load(context.Background(), "hybla", taken); !errors.Is(err, ErrTaken) {
			t.Errorf("load as %s: %v", taken, err)
		}
		if _, err := h.Unload(context.Background(), taken); !errors.Is(err, ErrTaken) {
			t.Errorf("unload %s: %v", taken, err)
		}
		if !isRegistered(t, taken) {
			t.Errorf("%s is gone", taken)
		}
		if a, ok := describe(t, h, taken); !ok || a.Origin != FromKernel || a.State != Ready {
			t.Errorf("%s is listed as %+v", taken, a)
		}
	}
}

// TestAbandoned holds that what another process has just given up is waited for
// and not taken for somebody else's.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	eachWay(t, abandoned)
}

func abandoned(t *testing.T, h *Host) {
	other := otherHost(t, h)
	h.abandonedPatience = patience
	given := func(t *testing.T) (name string) {
		name = load(t, other, "hybla") // pinned where h does not look
		done := make(chan struct{})
		go func() {
			defer close(done)
			// h makes its directory before it looks for the name.
			for {
				if _, err := os.Stat(h.dir()); err == nil || t.Context().Err() != nil {
					break
				}
				runtime.Gosched()
			}
			if _, err := other.Unload(context.Background(), name); err != nil {
				t.Error(err)
			}
		}()
		t.Cleanup(func() { <-done })
		return name
	}
	name := given(t)
	if result, err := h.Load(context.Background(), "hybla", name); err != nil || result.Outcome != Loaded {
		t.Errorf("load: %+v, %v", result, err)
	}
	if result, err := h.Unload(context.Background(), name); err != nil || result.Outcome != Unloaded {
		t.Errorf("unload what was loaded then: %+v, %v", result, err)
	}
	name = given(t)
	if result, err := h.Unload(context.Background(), name); !errors.Is(err, ErrUnknown) || result.Outcome != Nothing {
		t.Errorf("unload what nobody has any more: %+v, %v", result, err)
	}
}

// TestInterrupted makes what a load that is killed half-way can leave behind,
// step by step.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	pinMap := func(t *testing.T, h *Host, name, pin string) {
		t.Helper()
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		must(t, err)
		defer m.Close()
		must(t, m.Pin(h.dir(name, pin)))
	}
	mkdir := func(t *testing.T, h *Host, name string) {
		t.Helper()
		must(t, os.MkdirAll(h.dir(name), 0o700))
	}
	for _, state := range []struct {
		name string
		make func(t *testing.T, h *Host, name string)
	}{
		{"directory", mkdir},
		{"build", func(t *testing.T, h *Host, name string) {
			mkdir(t, h, name)
			must(t, h.writeBuild(name, build{algorithm: "brutal"}))
		}},
		{"maps", func(t *testing.T, h *Host, name string) {
			mkdir(t, h, name)
			pinMap(t, h, name, "budgets")
		}},
		{"bad build", func(t *testing.T, h *Host, name string) {
			mkdir(t, h, name)
			pinMap(t, h, name, buildPin)
		}},
		// Unload removes the registration first.
		{"unregistered", func(t *testing.T, h *Host, name string) {
			_, err := h.Load(context.Background(), "brutal", name)
			must(t, err)
			if h.unlinked {
				must(t, h.clearOps(name))
				return
			}
			must(t, os.Remove(h.dir(name, linkPin)))
			nettest.Eventually(t, patience, func() bool { return !isRegistered(t, name) },
				func() string { return "it stays registered" })
		}},
		// Without links the map is pinned first, and its value registers.
		{"map without value", func(t *testing.T, h *Host, name string) {
			mkdir(t, h, name)
			pinOps(t, h, name, opsPin)
		}},
		{"two maps without value", func(t *testing.T, h *Host, name string) {
			mkdir(t, h, name)
			pinOps(t, h, name, opsPin)
			pinOps(t, h, name, nextOpsPin)
		}},
	} {
		for _, then := range []string{"load", "unload"} {
			t.Run(state.name+" then "+then, func(t *testing.T) {
				eachWayAtOnce(t, func(t *testing.T, h *Host) {
					requirePaced(t)
					name := testName()
					state.make(t, h, name)
					if a, ok := describe(t, h, name); !ok || a.State != Incomplete || a.Why == "" {
						t.Errorf("listed as %+v", a)
					}
					want := Cleared
					if then == "load" {
						result, err := h.Load(context.Background(), "brutal", name)
						if err != nil || result.Outcome != Loaded {
							t.Errorf("load: %+v, %v", result, err)
						}
						want = Unloaded
					}
					result, err := h.Unload(context.Background(), name)
					if err != nil || result.Outcome != want || isRegistered(t, name) {
						t.Errorf("unload: %+v, %v", result, err)
					}
				})
			})
		}
	}
}

// pinOps pins a map for a table, without its value.
func pinOps(t *testing.T, h *Host, name, pin string) {
	t.Helper()
	o, err := h.object("brutal")
	must(t, err)
	m, err := newOps(o.table)
	must(t, err)
	defer m.Close()
	must(t, m.Pin(h.dir(name, pin)))
}

// TestManyAtOnce has several processes' worth of loads and unloads contend.
func TestManyAtOnce(t *testing.T) { eachWayAtOnce(t, testManyAtOnce) }

func testManyAtOnce(t *testing.T, h *Host) {
	name := testName()
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for range rounds(5) {
				own := *h // every process has its own
				var err error
				if i%2 == 0 {
					_, err = own.Load(context.Background(), "hybla", name)
				} else {
					_, err = own.Unload(context.Background(), name)
				}
				// Unloading what another has not loaded yet.
				if err != nil && !errors.Is(err, ErrUnknown) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if a, ok := describe(t, h, name); ok && a.State != Ready {
		t.Errorf("in the end: %+v", a)
	}
	if _, err := h.Unload(context.Background(), name); err != nil && !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if isRegistered(t, name) {
		t.Error("still registered")
	}
}

func TestNames(t *testing.T) {
	h := testHost(t)
	for _, test := range []struct{ algorithm, as, want string }{
		{"nonesuch", "nonesuch", "nonesuch: no such congestion control among "},
		{"hybla", "", "needs a name"},
		{"hybla", "sixteen_letters_", "too long"},
		{"hybla", "../hybla", "invalid congestion control name"},
		{"hybla", "hy-bla", "invalid congestion control name"},
		{"hybla", "hybla.2", "invalid congestion control name"},
		{"../hybla", "x", "no such congestion control"},
	} {
		if _, err := h.Load(context.Background(), test.algorithm, test.as); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("load %q as %q: %v, want %q", test.algorithm, test.as, err, test.want)
		}
		if _, err := h.Unload(context.Background(), test.as); test.want != "" && test.as != "x" && err == nil {
			t.Errorf("unload %q: no error", test.as)
		}
	}
}

func TestBadObjects(t *testing.T) {
	h := testHost(t)
	good, err := fs.ReadFile(h.Objects, "hybla_"+byteOrder+".o")
	must(t, err)
	object := func(b []byte) fs.FS { return fstest.MapFS{"x_" + byteOrder + ".o": {Data: b}} }
	for _, test := range []struct {
		name    string
		objects fs.FS
		want    string
	}{
		{"empty", object(nil), "read the object of x"},
		{"cut short", object(good[:len(good)/2]), "read the object of x"},
		{"of another name", object(good), `the object of x has an algorithm named "hybla"`},
	} {
		h.Objects = test.objects
		if _, err := h.Load(context.Background(), "x", testName()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	if left, _ := filepath.Glob(h.dir("*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestRejected holds that a refusal by the verifier comes as one sentence, with
// the whole log for those who ask, and leaves nothing.
func TestRejected(t *testing.T) {
	h := testHost(t)
	o, err := h.object("hybla")
	must(t, err)
	refuse(o, "_ssthresh")
	must(t, o.prepare())
	name := testName()
	reason := "invalid bpf_context access"
	want := "loading congestion control hybla needs a kernel whose BPF verifier accepts it (Linux 6.0 or newer should): " + reason
	if paces, err := bpfPaces(); err == nil && !paces {
		reason = "" // it may look first at a program that sets the pacing
		want = "loading congestion control hybla needs a kernel whose BPF may set the pacing of a connection (Linux 6.0)"
	}
	if _, err = h.loadObject(t, o, name); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error: %v", err)
	}
	if log := kernel.VerifierLog(err); !strings.Contains(log, "\n") || !strings.Contains(log, reason) {
		t.Errorf("log: %q", log)
	}
	if isRegistered(t, name) {
		t.Error("registered")
	}
}

func FuzzBuild(f *testing.F) {
	f.Add(build{algorithm: "hybla", loadedAt: time.Unix(1, 0)}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		decoded, err := decodeBuild(b)
		if err != nil {
			return
		}
		again, err := decodeBuild(decoded.encode())
		if err != nil || again.sum != decoded.sum || !again.loadedAt.Equal(decoded.loadedAt) {
			t.Fatalf("%+v, %+v, %v", decoded, again, err)
		}
	})
}
