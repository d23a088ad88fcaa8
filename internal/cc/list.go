package cc

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"longhaul/internal/kernel"
)

// State is where an algorithm stands.
type State string

// The states.
const (
	Ready       State = "ready"       // registered: sockets can have it
	Loadable    State = "loadable"    // one of ours that is not loaded
	Unavailable State = "unavailable" // one of ours that cannot be loaded; Why says what it takes
	Incomplete  State = "incomplete"  // a load was interrupted; load or unload clears it
)

// Origin is who brought an algorithm.
type Origin string

// The origins.
const (
	FromKernel   Origin = "kernel"   // built in, a module, or another BPF program
	FromLonghaul Origin = "longhaul" // one of ours, loaded or not
	FromUnknown  Origin = "unknown"  // registered under the name of one of ours; only root can see by whom
)

// Algorithm is one that sockets can have, or could have after [Host.Load].
type Algorithm struct {
	Name    string `json:"name"`
	Origin  Origin `json:"origin"`
	State   State  `json:"state"`
	Summary string `json:"summary,omitempty"`
	Default bool   `json:"default"` // of this network namespace
	// Restricted: a socket needs CAP_NET_ADMIN to choose it.
	Restricted bool `json:"restricted"`
	// Sockets of this network namespace that have it, nil if not known.
	Sockets *int `json:"sockets,omitempty"`
	// Why it is unavailable or incomplete, or not ours.
	Why string `json:"why,omitempty"`

	// Of ours that are loaded:

	LoadedAt  *time.Time `json:"loaded_at,omitempty"`
	Algorithm string     `json:"algorithm,omitempty"` // under another name
	// Outdated: it was loaded by another build, and loading it again replaces it.
	Outdated bool `json:"outdated,omitempty"`
}

// summaries say in a few words what each algorithm is for.
var summaries = map[string]string{
	"brutal":   "holds a given rate, whatever is lost",
	"haul":     "finds the rate of a lossy path by itself, keeps queues short",
	"hybla":    "long round trips grow like short ones",
	"illinois": "grows by delay, falls by loss; for fast clean paths",
}

// List tells what algorithms there are and could be: the kernel's first, in
// its own order, then ours by name. With tryOut, ours that are not loaded are
// shown to the kernel, some 20 ms each, to see whether it would take them.
func (h *Host) List(tryOut bool) ([]Algorithm, error) {
	available, err := Available()
	if err != nil {
		return nil, err
	}
	allowed, err := Allowed()
	if err != nil { // not there in every namespace
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
		if pinsErr != nil && slices.Contains(built, name) {
			a.Origin, a.Why = FromUnknown, "run as root to see who loaded it"
		}
		add(&kernels, a)
	}
	for _, name := range loaded {
		add(&ours, h.describeLoaded(name, slices.Contains(available, name)))
	}
	for _, name := range built {
		if slices.Contains(loaded, name) || slices.Contains(available, name) {
			continue
		}
		add(&ours, h.describeBuilt(name, tryOut))
	}
	slices.SortStableFunc(ours, func(a, b Algorithm) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return append(kernels, ours...), nil
}

// describeLoaded tells about one that has pins.
func (h *Host) describeLoaded(name string, registered bool) Algorithm {
	a := Algorithm{Name: name, Origin: FromLonghaul, State: Ready, Summary: summaries[name]}
	if !registered {
		a.State, a.Why = Incomplete, "a load was interrupted: load it again, or unload it"
		return a
	}
	if isPinned, err := h.pins().Exists(name, linkPin); err == nil && !isPinned {
		// Registered by somebody else while our own load was interrupted.
		a.Origin, a.Why = FromKernel, "pins of an interrupted load are left: unload clears them"
		return a
	}
	b, err := h.readBuild(name)
	if err != nil {
		a.Why = "what was loaded cannot be read: " + err.Error()
		return a
	}
	a.LoadedAt = &b.loadedAt
	if b.algorithm != name {
		a.Algorithm, a.Summary = b.algorithm, summaries[b.algorithm]
	}
	o, err := h.object(b.algorithm)
	a.Outdated = err != nil || o.sum != b.sum
	return a
}

// describeBuilt tells about one that is not loaded.
func (h *Host) describeBuilt(name string, tryOut bool) Algorithm {
	a := Algorithm{Name: name, Origin: FromLonghaul, State: Loadable, Summary: summaries[name]}
	if err := h.whyNot(name, tryOut); err != nil {
		a.State = Unavailable
		a.Why = err.Error()
		if lacking := (*kernel.ErrUnsupported)(nil); errors.As(err, &lacking) {
			a.Why = "needs " + lacking.Needs
		}
	}
	return a
}

// whyNot says what keeps an algorithm from being loaded.
func (h *Host) whyNot(name string, tryOut bool) error {
	o, err := h.object(name)
	if err != nil {
		return err
	}
	if err := o.prepare(); err != nil {
		return err
	}
	if !tryOut {
		return nil
	}
	return o.tryOut()
}

// tryOut has the verifier look at an object's programs, without pins.
func (o *object) tryOut() error {
	for _, m := range o.spec.Maps {
		m.Pinning = 0
	}
	collection, err := o.intoKernel("")
	if err != nil {
		return err
	}
	collection.Close()
	return nil
}

// Allowed are the algorithms that sockets of any user may choose.
func Allowed() ([]string, error) { return readNames("tcp_allowed_congestion_control") }
