// Package ledger records longhaul's changes of this host with their owners. For each
// changed thing it has the value from before the first change, and the claims on the
// thing in the order in which they were made. The last claim is in force. Taking it
// back restores the claim before it, or the former value.
//
// All changes are in one file. A change locks the ledger, writes the record, changes
// the kernel, and writes the record again without the mark that the change is under
// way. So an interrupted command leaves a marked record, which the next command
// completes. See docs/design/ownership.md.
package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/dirlock"
	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/undo"
	"longhaul/internal/words/remedy"
)

// DefaultDir is the usual directory of the ledger. It ends with the machine, as do the
// changes.
const DefaultDir = "/run/longhaul-host"

// fileName is the ledger's file in its directory.
const fileName = "changes.json"

// Kind is a kind of thing that longhaul changes.
type Kind string

// The kinds.
const (
	Algorithm Kind = "algorithm" // a congestion control in the kernel, for all namespaces
	Default   Kind = "default"   // the default congestion control of a namespace
	Route     Kind = "route"     // a metric of a route
	MSS       Kind = "mss"       // a rule that rewrites the MSS
	Intercept Kind = "intercept" // connections that a relay takes out of the routed path
)

// Key names a thing that longhaul changes.
type Key struct {
	Kind  Kind   `json:"kind"`
	NetNS uint64 `json:"netns,omitempty"` // [Here]; 0 for things of the whole machine
	// Name is the algorithm, the prefix of the route, the index of the device, or the relay.
	Name string `json:"name,omitempty"`
	// Part is the metric of the route, or the data of the rule.
	Part string `json:"part,omitempty"`
}

// Claim is the value that an owner wants for a thing.
type Claim struct {
	By
	Since time.Time       `json:"since"`
	Value json.RawMessage `json:"value,omitempty"`
	Text  string          `json:"text,omitempty"` // the value, for people
	// Needs is the algorithm that the claim keeps loaded.
	Needs string `json:"needs,omitempty"`
	// Inherited is the prefix of the route from which a route was made with the claim's
	// value. The claim goes with the owner's claim there.
	Inherited string `json:"inherited,omitempty"`
}

// Entry is a changed thing.
type Entry struct {
	Key
	// Label describes the thing to people.
	Label string `json:"label"`
	// Former is the value before the first change. Another program's change between
	// two claims becomes the former value, and ends the earlier claims.
	Former     json.RawMessage `json:"former,omitempty"`
	FormerText string          `json:"former_text,omitempty"`
	// Detail is for the package that changes the thing.
	Detail json.RawMessage `json:"detail,omitempty"`
	Claims []Claim         `json:"claims"`
	// Pending is the kernel's value before the change under way.
	Pending json.RawMessage `json:"pending,omitempty"`
	// Adopted: the kernel has the thing without a record. [Book.Save] leaves the entry
	// out until somebody claims it.
	Adopted bool `json:"-"`
}

// Put adds a claim, on top. It replaces the same owner's claim by the same means, and
// those of the owner's ended processes.
func (e *Entry) Put(c Claim) {
	e.Adopted = e.Adopted && c.Owner == Unknown
	e.Claims = slices.DeleteFunc(e.Claims, func(old Claim) bool {
		return old.Same(c.By) || old.Owner == c.Owner && old.Means == c.Means && old.Ended()
	})
	e.Claims = append(e.Claims, c)
}

// Take removes the chosen claims. inForce reports whether the last one is among them.
func (e *Entry) Take(choose func(Key, Claim) bool) (taken []Claim, inForce bool) {
	var left []Claim
	for i, c := range e.Claims {
		if choose(e.Key, c) {
			taken = append(taken, c)
			inForce = i == len(e.Claims)-1
		} else {
			left = append(left, c)
		}
	}
	e.Claims = left
	return taken, inForce
}

// InForce returns the value of the last claim, or else the former value.
func (e *Entry) InForce() json.RawMessage {
	if n := len(e.Claims); n > 0 {
		return e.Claims[n-1].Value
	}
	return e.Former
}

// Encode returns a value as an entry has it.
func Encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // values are numbers, texts and prefixes
	}
	return b
}

// Decode returns an entry's value, zero if it has none.
func Decode[T any](raw json.RawMessage) (v T) {
	// An unreadable value was refused with the file.
	_ = json.Unmarshal(raw, &v)
	return v
}

// Book is the ledger as one command sees and changes it.
type Book struct {
	Entries []*Entry

	dir    string
	dryRun bool
	unlock func()
}

// document is the file's content.
type document struct {
	Format  int      `json:"format"`
	Changes []*Entry `json:"changes"`
}

const format = 1

// Read returns the ledger for reading.
func Read(dir string) (*Book, error) {
	b := &Book{dir: dir, dryRun: true}
	path := filepath.Join(dir, fileName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ledger of changes: %w", err)
	}
	var d document
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return nil, damaged(path, err)
	}
	if d.Format != format {
		return nil, damaged(path, fmt.Errorf("its format is %d, not %d", d.Format, format))
	}
	for _, e := range d.Changes {
		if e == nil || e.Kind == "" {
			return nil, damaged(path, errors.New("a change has no kind"))
		}
	}
	b.Entries = d.Changes
	return b, nil
}

func damaged(path string, err error) error {
	return remedy.New(fmt.Errorf("the ledger of changes %s is damaged: %w", path, err),
		"remove the file; longhaul host list then shows what the kernel still has, without owners, and a restart of the machine undoes all")
}

// Open locks the ledger until [Book.Close]. A dry run reads it, and saves nothing.
func Open(dir string, dryRun bool) (*Book, error) {
	if dryRun {
		return Read(dir)
	}
	unlock, err := dirlock.Make(context.Background(), dir, 0o755)
	if errors.Is(err, fs.ErrPermission) {
		return nil, notPermitted(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("record the changes to undo: %w", err)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		unlock()
		return nil, notPermitted(dir)
	}
	b, err := Read(dir)
	if err != nil {
		unlock()
		return nil, err
	}
	b.dryRun, b.unlock = false, unlock
	return b, nil
}

func notPermitted(dir string) error {
	return remedy.New(fmt.Errorf("record changes of the host in %s: %w", dir, fs.ErrPermission), "run it as root")
}

// Close unlocks the ledger. It removes the directory if no change is recorded.
func (b *Book) Close() {
	if b.unlock == nil {
		return
	}
	_ = os.Remove(b.dir) // fails while it has a file, as intended
	b.unlock()
	b.unlock = nil
}

// DryRun reports whether changes of the kernel and of the book stay in this process.
func (b *Book) DryRun() bool { return b.dryRun }

// Save writes the ledger, and removes the file without entries.
func (b *Book) Save() error {
	if b.dryRun {
		return nil
	}
	path := filepath.Join(b.dir, fileName)
	recorded := slices.DeleteFunc(slices.Clone(b.Entries), func(e *Entry) bool { return e.Adopted })
	if len(recorded) == 0 {
		return undo.Remove(path)
	}
	text, err := json.MarshalIndent(document{format, recorded}, "", "  ")
	if err != nil {
		return err
	}
	return undo.Write(path, append(text, '\n'))
}

// Snapshot returns a function that restores the entries as they are now, for a change
// that fails.
func (b *Book) Snapshot() (restore func()) {
	saved := make([]*Entry, len(b.Entries))
	for i, e := range b.Entries {
		c := *e
		c.Claims = slices.Clone(e.Claims)
		saved[i] = &c
	}
	return func() { b.Entries = saved }
}

// Find returns the entry of a thing, nil if longhaul has not changed it.
func (b *Book) Find(k Key) *Entry {
	for _, e := range b.Entries {
		if e.Key == k {
			return e
		}
	}
	return nil
}

// Add adds an entry.
func (b *Book) Add(e *Entry) *Entry {
	b.Entries = append(b.Entries, e)
	return e
}

// Drop removes the entries that which chooses, without a change of the kernel.
func (b *Book) Drop(which func(*Entry) bool) {
	b.Entries = slices.DeleteFunc(b.Entries, which)
}

// Of returns the entries of a kind in a namespace.
func (b *Book) Of(kind Kind, netns uint64) (found []*Entry) {
	for _, e := range b.Entries {
		if e.Kind == kind && e.NetNS == netns {
			found = append(found, e)
		}
	}
	return found
}

// User is a claim that keeps an algorithm loaded.
type User struct {
	Entry *Entry
	Claim Claim
}

// Users returns the claims that need an algorithm, and the claims on the algorithm of
// owners that have not ended.
func (b *Book) Users(algorithm string) (users []User) {
	for _, e := range b.Entries {
		for _, c := range e.Claims {
			own := e.Kind == Algorithm && e.Name == algorithm && !c.Ended()
			if own || c.Needs == algorithm {
				users = append(users, User{e, c})
			}
		}
	}
	return users
}

// Here identifies the calling thread's network namespace: [Key.NetNS].
func Here() (uint64, error) { return kernel.NetNSID() }
