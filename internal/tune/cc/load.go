package cc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/remedy"
)

// Outcome is the outcome of [Host.Load] or [Host.Unload].
type Outcome string

// The outcomes.
const (
	Loaded   Outcome = "loaded"
	Already  Outcome = "already loaded" // from this build
	Replaced Outcome = "replaced"       // another build, which its connections keep
	Unloaded Outcome = "unloaded"
	Cleared  Outcome = "cleared" // leftovers of an interrupted load
	Nothing  Outcome = "not loaded"
)

// LoadResult is the result of [Host.Load].
type LoadResult struct {
	Outcome Outcome
	// Notes list degraded features, a sentence each.
	Notes []string
}

// Load registers an algorithm under a name, usually its own, pins it and claims it. It
// replaces another build under that name in one step: new connections use the new
// build, existing ones keep theirs. The error is an [*kernel.ErrUnsupported] if the
// kernel or the privilege does not allow it, and [ErrTaken] if another owner has the
// name.
func (h *Host) Load(ctx context.Context, algorithm, name string) (LoadResult, error) {
	if h.DryRun {
		return h.withLedger(func(book *ledger.Book) (LoadResult, error) { return h.LoadIn(ctx, book, algorithm, name) })
	}
	// A missing privilege is reported as such, and not by the ledger.
	if _, err := h.prepared(algorithm, name); err != nil {
		return LoadResult{}, err
	}
	return h.withLedger(func(book *ledger.Book) (LoadResult, error) { return h.LoadIn(ctx, book, algorithm, name) })
}

func (h *Host) withLedger(f func(*ledger.Book) (LoadResult, error)) (LoadResult, error) {
	book, err := ledger.Open(h.Ledger, h.DryRun)
	if err != nil {
		return LoadResult{}, err
	}
	defer book.Close()
	return f(book)
}

// algorithmKey names an algorithm in the ledger.
func algorithmKey(name string) ledger.Key { return ledger.Key{Kind: ledger.Algorithm, Name: name} }

// LoadIn is [Host.Load] in an open ledger.
func (h *Host) LoadIn(ctx context.Context, book *ledger.Book, algorithm, name string) (LoadResult, error) {
	claim := ledger.Claim{By: h.By, Since: time.Now(), Value: ledger.Encode(algorithm), Text: "loaded"}
	return h.loadAndRecord(ctx, book, algorithm, name, &claim)
}

// HoldIn loads an algorithm for a claim that needs it. The algorithm itself gets no
// claim, so it goes with the claim.
func (h *Host) HoldIn(ctx context.Context, book *ledger.Book, algorithm string) (LoadResult, error) {
	return h.loadAndRecord(ctx, book, algorithm, algorithm, nil)
}

// prepared checks a name and returns its object, ready for this kernel.
func (h *Host) prepared(algorithm, name string) (*object, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	o, err := h.object(algorithm)
	if err != nil {
		return nil, err
	}
	return o, o.prepare()
}

func (h *Host) loadAndRecord(ctx context.Context, book *ledger.Book, algorithm, name string, claim *ledger.Claim) (LoadResult, error) {
	o, err := h.prepared(algorithm, name)
	if err != nil {
		return LoadResult{}, err
	}
	if h.DryRun {
		return h.wouldLoad(ctx, book, o, name, claim)
	}
	if err := h.pins().Mount("an algorithm is there in every network namespace"); err != nil {
		return LoadResult{}, err
	}
	if err := h.AdoptIn(book); err != nil {
		return LoadResult{}, err
	}
	restore := book.Snapshot()
	left, err := recordedOrphan(book, name)
	if err != nil {
		return LoadResult{}, err
	}
	if left != nil {
		defer left.Close()
	}
	record(book, name, claim)
	if err := book.Save(); err != nil {
		return LoadResult{}, err
	}
	result, err := h.lockAndLoad(ctx, o, name, left)
	if err != nil {
		restore()
		return LoadResult{}, errors.Join(err, book.Save())
	}
	return result, nil
}

// record adds a claim, if one is made, to an algorithm's entry.
func record(book *ledger.Book, name string, claim *ledger.Claim) {
	e := book.Find(algorithmKey(name))
	if e == nil {
		e = book.Add(&ledger.Entry{Key: algorithmKey(name), Label: name})
	}
	if len(e.Claims) == 1 && e.Claims[0].Text == interrupted {
		e.Claims = nil // the load completes it
	}
	e.Adopted = false
	if claim != nil {
		e.Put(*claim)
	}
}

// interrupted is the value of an algorithm whose load was interrupted without a record.
const interrupted = "interrupted"

// lockAndLoad loads. left is an orphan of the name, or nil.
func (h *Host) lockAndLoad(ctx context.Context, o *object, name string, left *ebpf.Map) (LoadResult, error) {
	unlock, err := h.pins().Lock(ctx)
	if err != nil {
		return LoadResult{}, err
	}
	defer unlock()
	isPinned, err := h.pins().Exists(name)
	if err != nil {
		return LoadResult{}, err
	}
	if left != nil && !isPinned {
		if err := unregisterOps(left); err != nil {
			return LoadResult{}, fmt.Errorf("unregister %s, whose pins are gone: %w", name, err)
		}
	}
	return h.load(ctx, o, name)
}

// wouldLoad returns the outcome of a load without making it.
func (h *Host) wouldLoad(ctx context.Context, book *ledger.Book, o *object, name string, claim *ledger.Claim) (LoadResult, error) {
	outcome, err := h.check(ctx, o, name)
	if errors.Is(err, ErrTaken) {
		if left, orphanErr := recordedOrphan(book, name); orphanErr == nil && left != nil {
			left.Close()
			outcome, err = Loaded, nil
		}
	}
	if err != nil {
		return LoadResult{}, err
	}
	if outcome != Already {
		if err := o.tryOut(); err != nil {
			return LoadResult{}, err
		}
	}
	record(book, name, claim)
	return LoadResult{Outcome: outcome, Notes: o.notes}, nil
}

// AdoptIn gives loaded algorithms without a record an entry of an unknown owner.
func (h *Host) AdoptIn(book *ledger.Book) error {
	names, err := h.LoadedNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		if book.Find(algorithmKey(name)) != nil {
			continue
		}
		claim := ledger.Claim{By: ledger.By{Owner: ledger.Unknown, Means: ledger.Command}, Text: "loaded"}
		if isPinned, err := h.holds(name); err != nil || !isPinned {
			claim.Text = interrupted
		} else if b, err := h.readBuild(name); err == nil {
			claim.Since = b.loadedAt
		}
		book.Add(&ledger.Entry{Key: algorithmKey(name), Label: name, Claims: []ledger.Claim{claim}, Adopted: true})
	}
	return nil
}

// prepare adapts the object to the kernel, and returns an error for a missing feature
// or privilege, without loading it.
func (o *object) prepare() error {
	feature := "loading congestion control " + o.name
	if err := kernel.CheckBTF(feature); err != nil {
		return err
	}
	if err := kernel.CheckBPF(feature, o.capabilities()...); err != nil {
		return err
	}
	types, err := readKernelTypes()
	if err != nil {
		return err
	}
	return o.adapt(types)
}

// check returns the outcome that a load would have.
func (h *Host) check(ctx context.Context, o *object, name string) (Outcome, error) {
	isPinned, err := h.holds(name)
	if err != nil {
		return "", err
	}
	isRegistered, err := registered(name)
	if err != nil {
		return "", err
	}
	if isRegistered && !isPinned {
		gone, err := h.abandoned(ctx, name)
		if err != nil {
			return "", err
		}
		isRegistered = !gone
	}
	switch {
	case isPinned && isRegistered:
		was, err := h.readBuild(name)
		if err == nil && was.sum == o.sum && was.algorithm == o.name {
			return Already, nil
		}
		if err == nil && was.algorithm != o.name {
			return "", fmt.Errorf("%s is loaded as %s: unload it first", was.algorithm, name)
		}
		return Replaced, nil
	case isRegistered:
		return "", taken(o.name, name, "it is a kernel module, or another program loaded it")
	}
	return Loaded, nil
}

// load registers and pins. The caller holds the lock.
func (h *Host) load(ctx context.Context, o *object, name string) (result LoadResult, err error) {
	result.Outcome, err = h.check(ctx, o, name)
	if err == nil && result.Outcome != Loaded {
		err = h.settleOps(name)
	}
	if err != nil || result.Outcome == Already {
		return result, err
	}
	if result.Outcome == Loaded {
		// Leftovers of an interrupted load, or of a link that somebody detached.
		if err := h.clear(name); err != nil {
			return LoadResult{}, err
		}
	}
	if err := os.MkdirAll(h.dir(name), 0o700); err != nil {
		return LoadResult{}, fmt.Errorf("make the directory of pins: %w", err)
	}
	if result.Outcome == Loaded {
		defer func() {
			if err != nil {
				err = errors.Join(err, h.clear(name))
			}
		}()
	}
	if err := o.rename(name); err != nil {
		return LoadResult{}, err
	}
	if err := o.dropOldCaches(h.dir(name)); err != nil {
		return LoadResult{}, err
	}
	collection, err := o.intoKernel(h.dir(name))
	if err != nil {
		return LoadResult{}, err
	}
	defer collection.Close()

	notes, err := h.attachRest(o, name, collection)
	if err != nil {
		return LoadResult{}, err
	}
	result.Notes = append(o.notes, notes...)
	b := build{o.name, o.sum, time.Now()}
	if result.Outcome == Replaced {
		err = h.replace(name, o, collection, b)
	} else if err = h.writeBuild(name, b); err == nil {
		err = h.register(name, o, collection)
	}
	if err != nil {
		return LoadResult{}, err
	}
	return result, nil
}

// replace replaces a registered algorithm. Meanwhile its record is that of no build, so
// that a load after a crash replaces it again.
func (h *Host) replace(name string, o *object, collection *ebpf.Collection, b build) error {
	former, err := h.readBuild(name)
	if err != nil { // unreadable
		former = build{algorithm: b.algorithm, loadedAt: b.loadedAt}
	}
	unknown := former
	unknown.sum = [sha256.Size]byte{}
	if err := h.writeBuild(name, unknown); err != nil {
		return err
	}
	if o.linked {
		err = replaceOps(h.dir(name, linkPin), collection.Maps[o.table.Name])
	} else {
		err = h.replaceByOps(name, o, collection.Programs)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", name, err), h.writeBuild(name, former))
	}
	return h.writeBuild(name, b)
}

// register registers the table, by a link if the kernel has those.
func (h *Host) register(name string, o *object, collection *ebpf.Collection) error {
	if !o.linked {
		return h.registerOps(name, o, collection.Programs)
	}
	l, err := link.AttachStructOps(link.StructOpsOptions{Map: collection.Maps[o.table.Name]})
	if errors.Is(err, unix.EEXIST) {
		return taken(o.name, name, "another process registered it just now")
	}
	if err != nil {
		return fmt.Errorf("register %s: %w", name, err)
	}
	defer l.Close()
	if err := l.Pin(h.dir(name, linkPin)); err != nil {
		return fmt.Errorf("pin %s: %w", name, err)
	}
	return nil
}

// intoKernel loads a prepared object through the verifier and makes its maps, the
// table's only if a link registers it. Maps shared with user space are pinned in dir,
// or reused from there. Where the verifier refuses the programs, it tries the reduced
// ones.
func (o *object) intoKernel(dir string) (*ebpf.Collection, error) {
	collection, err := o.verify(dir)
	if kernel.VerifierLog(err) == "" || len(o.reduced) == 0 {
		return collection, err
	}
	o.reduce()
	if collection, reducedErr := o.verify(dir); reducedErr == nil {
		return collection, nil
	}
	return nil, err
}

// dropOldCaches removes the pins of caches in another format than the object's. The kernel
// may drop any entry of an LRU map, so an algorithm can do without them.
func (o *object) dropOldCaches(dir string) error {
	for name, spec := range o.spec.Maps {
		if spec.Type != ebpf.LRUHash || spec.Pinning != ebpf.PinByName {
			continue
		}
		pin := filepath.Join(dir, name)
		m, err := ebpf.LoadPinnedMap(pin, nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open the %s of %s: %w", name, o.name, err)
		}
		fits := spec.Compatible(m) == nil
		m.Close()
		if fits {
			continue
		}
		if err := os.Remove(pin); err != nil {
			return fmt.Errorf("remove the %s of %s, which are in another format: %w", name, o.name, err)
		}
	}
	return nil
}

func (o *object) verify(dir string) (*ebpf.Collection, error) {
	types, err := readKernelTypes()
	if err != nil {
		return nil, err
	}
	collection, err := ebpf.NewCollectionWithOptions(o.spec, ebpf.CollectionOptions{
		Maps:  ebpf.MapOptions{PinPath: dir},
		Cache: types.cache,
	})
	var rejected *ebpf.VerifierError
	switch {
	case err == nil:
		return collection, nil
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return nil, fmt.Errorf("the loaded %s has data in another format: unload it first", o.name)
	case errors.As(err, &rejected) && !remedy.OutOfDescriptors(err): // with none left, the log finds no fault
		err := kernel.Rejected(loading+o.name, "Linux 6.0", rejected, rejected.Log)
		if paces, pacesErr := bpfPaces(); pacesErr == nil && !paces {
			err.Needs = "a kernel whose BPF may set the pacing of a connection (Linux 6.0)"
		}
		return nil, err
	case errors.Is(err, ebpf.ErrNotSupported):
		return nil, unsupported(o.name, "another kernel: "+err.Error())
	}
	return nil, fmt.Errorf("load %s: %w", o.name, err)
}

// attachRest attaches the programs of an object that are not operations of the table.
// The algorithm also works without them.
func (h *Host) attachRest(o *object, name string, collection *ebpf.Collection) (notes []string, err error) {
	for program, spec := range o.spec.Programs {
		if spec.Type != ebpf.CGroupSockopt {
			continue
		}
		note := func(err error) {
			notes = append(notes, fmt.Sprintf("%s works without %s: %v", name, program, err))
		}
		root, err := kernel.Cgroup2()
		if err != nil {
			note(err)
			continue
		}
		if err := attachCgroup(h.dir(name, program), root, spec.AttachType, collection.Programs[program]); err != nil {
			note(err)
		}
	}
	return notes, nil
}

// attachCgroup attaches a program to a control group, or updates its pinned link.
func attachCgroup(pin, cgroup string, attach ebpf.AttachType, program *ebpf.Program) error {
	old, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer old.Close()
		return old.Update(program)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: attach, Program: program})
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(pin)
}

// replaceOps replaces the table of the pinned link. The library has no call for this.
func replaceOps(pin string, ops *ebpf.Map) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return fmt.Errorf("open its link: %w: unload it first", err)
	}
	defer l.Close()
	raw, ok := l.(interface{ FD() int })
	if !ok {
		return errors.New("its link has no descriptor")
	}
	// Fields of the system call's argument for BPF_LINK_UPDATE.
	attr := struct{ linkFD, newMapFD, flags, oldMapFD uint32 }{linkFD: uint32(raw.FD()), newMapFD: uint32(ops.FD())}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_UPDATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return fmt.Errorf("update its link: %w: unload it first", errno)
	}
	return nil
}
