package cc

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/words/ccnames"
	"longhaul/internal/words/sorted"
)

// State is the state of an algorithm.
type State string

// The states.
const (
	Ready       State = "ready"       // registered: sockets can use it
	Loadable    State = "loadable"    // one of longhaul's, not loaded
	Unavailable State = "unavailable" // one of longhaul's that cannot be loaded; Why has the reason
	Incomplete  State = "incomplete"  // a load was interrupted; load or unload clears it
)

// Origin is the source of an algorithm.
type Origin string

// The origins.
const (
	FromKernel   Origin = "kernel"   // built in, a module, or another BPF program
	FromLonghaul Origin = "longhaul" // one of longhaul's, loaded or not
	FromUnknown  Origin = "unknown"  // registered under a name of longhaul's; only root can see the owner
)

// Algorithm is an algorithm that sockets can use, now or after [Host.Load].
type Algorithm struct {
	Name    string `json:"name"`
	Origin  Origin `json:"origin"`
	State   State  `json:"state"`
	Summary string `json:"summary,omitempty"`
	Default bool   `json:"default"` // of this network namespace
	// Restricted: a socket needs CAP_NET_ADMIN to choose it.
	Restricted bool `json:"restricted"`
	// Sockets of this network namespace that use it, nil if unknown.
	Sockets *int `json:"sockets,omitempty"`
	// Why is the reason if it is unavailable, incomplete or not longhaul's.
	Why string `json:"why,omitempty"`

	// For loaded algorithms of longhaul's:

	// Owners have loaded it, or use it for destinations or as a default.
	Owners    []string   `json:"owners,omitempty"`
	LoadedAt  *time.Time `json:"loaded_at,omitempty"`
	Algorithm string     `json:"algorithm,omitempty"` // under another name
	// Outdated: another build is loaded, and loading again replaces it.
	Outdated bool `json:"outdated,omitempty"`

	// Notes list degraded features of one that is not loaded, a sentence each.
	Notes []string `json:"notes,omitempty"`
}

// List returns the registered and loadable algorithms: the kernel's first, in its own
// order, then longhaul's by name. With tryOut it has the kernel verify those that are
// not loaded, some 20 ms each.
func (h *Host) List(tryOut bool) ([]Algorithm, error) {
	available, err := Available()
	if err != nil {
		return nil, err
	}
	allowed, err := Allowed()
	if err != nil { // missing in some namespaces
		allowed = available
	}
	defaultName, err := ReadDefault()
	if err != nil {
		return nil, err
	}
	sockets, countErr := SocketCounts()
	built, err := h.Names()
	if err != nil {
		return nil, err
	}
	loaded, pinsErr := h.LoadedNames()
	if pinsErr != nil && !errors.Is(pinsErr, fs.ErrPermission) {
		return nil, pinsErr
	}

	book, err := ledger.Read(h.Ledger)
	if err != nil {
		return nil, err
	}

	var kernels, ours []Algorithm
	add := func(to *[]Algorithm, a Algorithm) {
		if a.State == Ready {
			a.Default = a.Name == defaultName
			a.Restricted = !slices.Contains(allowed, a.Name)
			if countErr == nil {
				n := sockets[a.Name]
				a.Sockets = &n
			}
		}
		*to = append(*to, a)
	}
	for _, name := range available {
		if slices.Contains(loaded, name) {
			continue
		}
		a := Algorithm{Name: name, Origin: FromKernel, State: Ready}
		if m, err := recordedOrphan(book, name); err == nil && m != nil {
			m.Close()
			a.Origin, a.Why = FromLonghaul, "its pins are gone: load it again, or unload it"
		}
		if pinsErr != nil && slices.Contains(built, name) {
			a.Origin, a.Why = FromUnknown, "run as root to see who loaded it"
		}
		add(&kernels, a)
	}
	for _, name := range loaded {
		a := h.describeLoaded(name, slices.Contains(available, name))
		for _, u := range book.Users(name) {
			if !slices.Contains(a.Owners, u.Claim.Owner) {
				a.Owners = append(a.Owners, u.Claim.Owner)
			}
		}
		add(&ours, a)
	}
	if pinsErr == nil {
		built = offered(built, available, loaded)
	}
	for _, name := range built {
		if slices.Contains(loaded, name) || slices.Contains(available, name) {
			continue
		}
		add(&ours, h.describeBuilt(name, tryOut))
	}
	sorted.By(ours, func(a, b Algorithm) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return append(kernels, ours...), nil
}

// describeLoaded describes an algorithm with pins.
func (h *Host) describeLoaded(name string, registered bool) Algorithm {
	a := Algorithm{Name: name, Origin: FromLonghaul, State: Ready, Summary: summary(name)}
	if !registered {
		a.State, a.Why = Incomplete, "a load was interrupted: load it again, or unload it"
		return a
	}
	if isPinned, err := h.holds(name); err == nil && !isPinned {
		// Registered by another owner while our own load was interrupted.
		a.Origin, a.Why = FromKernel, "pins of an interrupted load are left: unload clears them"
		return a
	}
	b, err := h.readBuild(name)
	if err != nil {
		a.Why = "unreadable build record: " + err.Error()
		return a
	}
	a.LoadedAt = &b.loadedAt
	if b.algorithm != name {
		a.Algorithm, a.Summary = b.algorithm, summary(b.algorithm)
	}
	o, err := h.object(b.algorithm)
	a.Outdated = err != nil || o.sum != b.sum
	return a
}

// describeBuilt describes an algorithm that is not loaded, by its first or second name.
func (h *Host) describeBuilt(name string, tryOut bool) Algorithm {
	a := Algorithm{Name: name, Origin: FromLonghaul, State: Loadable, Summary: summary(name)}
	if algorithm := ccnames.First(name); algorithm != name {
		a.Algorithm = algorithm
	}
	var err error
	if a.Notes, err = h.whyNot(name, tryOut); err != nil {
		a.State = Unavailable
		a.Why = err.Error()
		if lacking := (*kernel.ErrUnsupported)(nil); errors.As(err, &lacking) {
			a.Why = "needs " + lacking.Needs
		}
	}
	return a
}

// summary describes one of longhaul's algorithms in a few words.
func summary(name string) string {
	a, _ := ccnames.FindOwn(name)
	return a.Summary
}

// whyNot returns why an algorithm cannot be loaded, or which features are degraded.
func (h *Host) whyNot(name string, tryOut bool) (notes []string, err error) {
	o, err := h.object(name)
	if err != nil {
		return nil, err
	}
	if err := o.prepare(); err != nil {
		return nil, err
	}
	if !tryOut {
		return nil, nil
	}
	if err := o.tryOut(); err != nil {
		return nil, err
	}
	return o.notes, nil
}

// tryOut has the kernel check an object's programs, without pins or registration.
func (o *object) tryOut() error {
	for _, m := range o.spec.Maps {
		m.Pinning = 0
	}
	collection, err := o.intoKernel("")
	if err != nil {
		return err
	}
	defer collection.Close()
	if o.linked {
		return nil
	}
	types, err := readKernelTypes()
	if err != nil {
		return err
	}
	return o.tryOps(types, collection.Programs)
}

// Allowed returns the algorithms that sockets of any user may choose.
func Allowed() ([]string, error) { return readNames("tcp_allowed_congestion_control") }
