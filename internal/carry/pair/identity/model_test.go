package identity

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/test/nettest"
)

// site is a host of the model, whose relay is two processes during an upgrade.
type site struct {
	name      string
	processes [2]*Store
}

// meets reports why one process of a host cannot connect to one of another, or nil.
func meets(near, far *Store, nearName, farName string) error {
	expected := near.PeerKeys(farName)
	if len(expected) == 0 {
		return fmt.Errorf("%s does not know %s", nearName, farName)
	}
	own, shown := near.PublicKeys(), far.PublicKeys()
	equal := func(key ed25519.PublicKey) func(ed25519.PublicKey) bool {
		return func(other ed25519.PublicKey) bool { return bytes.Equal(key, other) }
	}
	switch {
	case !slices.ContainsFunc(shown, equal(expected[0])):
		return fmt.Errorf("%s does not recognise the preface of %s", farName, nearName)
	case !slices.ContainsFunc(expected, equal(shown[0])):
		return fmt.Errorf("%s refuses the key that %s uses", nearName, farName)
	}
	if name, _ := far.PeerOf(own[0]); name != nearName {
		return fmt.Errorf("%s takes %s for %q", farName, nearName, name)
	}
	return nil
}

// handshake does what a handshake does to the stores, if it succeeds.
func handshake(near, far *Store, nearName, farName string) error {
	if err := meets(near, far, nearName, farName); err != nil {
		return err
	}
	for _, way := range []struct {
		s, other *Store
		peer     string
	}{{near, far, farName}, {far, near, nearName}} {
		c, err := way.s.load()
		if err != nil {
			return err
		}
		way.s.saw(c.peers.named(way.peer), PublicKey(way.other.PublicKeys()[0]))
	}
	return nil
}

// TestRotationModel has three hosts rotate their keys at random moments, while messages
// of sessions get lost and two processes of each host see the files with delay. Within a
// second after any step, every two hosts can connect, and a rotation ends once the hosts
// talk to each other.
func TestRotationModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { runModel(t, dir, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func runModel(t *testing.T, dir string, random *rand.Rand) {
	names := []string{"a", "b", "c"}
	sites := make([]site, len(names))
	for i, name := range names {
		sites[i].name = name
		for j := range sites[i].processes {
			sites[i].processes[j] = New(filepath.Join(dir, name))
		}
	}
	eachPair := func(f func(one, other *site)) {
		for i := range sites {
			for j := range sites {
				if i != j {
					f(&sites[i], &sites[j])
				}
			}
		}
	}
	eachPair(func(one, other *site) { pin(t, one.processes[0], other.name, own(t, other.processes[0])) })
	// tell has a process announce its host's key, as far as messages arrive.
	tell := func(one, other *site, lost int) {
		from, to := one.processes[random.IntN(2)], other.processes[random.IntN(2)]
		if handshake(from, to, one.name, other.name) != nil {
			return // not within this second
		}
		key := from.Announced(other.name)
		if key == nil || lost == 0 {
			return
		}
		if err := to.Learn(one.name, key); errors.Is(err, ErrTooSoon) {
			return
		} else {
			nettest.Must(t, err)
		}
		if lost == 1 {
			return
		}
		// A stale process may not know the rotation that another has begun or ended.
		_ = from.Taken(other.name, key)
	}
	check := func(when string) {
		t.Helper()
		time.Sleep(checkInterval)
		eachPair(func(one, other *site) {
			for _, near := range one.processes {
				for _, far := range other.processes {
					if err := meets(near, far, one.name, other.name); err != nil {
						t.Fatalf("%s: %v", when, err)
					}
				}
			}
		})
	}
	for step := range 40 {
		if random.IntN(3) == 0 {
			time.Sleep(LearnPause)
		}
		one, other := &sites[random.IntN(3)], &sites[random.IntN(3)]
		switch action := random.IntN(4); {
		case action == 0:
			_, err := one.processes[random.IntN(2)].Rotate()
			nettest.Must(t, err)
		case one != other:
			tell(one, other, random.IntN(3))
		}
		if random.IntN(3) == 0 {
			check(fmt.Sprint("after step ", step))
		}
	}
	for range 2 * MaxKeys {
		eachPair(func(one, other *site) {
			time.Sleep(LearnPause)
			tell(one, other, 2)
		})
	}
	check("in the end")
	for _, s := range sites {
		if keys := s.processes[0].PublicKeys(); len(keys) != 1 {
			t.Errorf("the rotation of %s has not ended", s.name)
		}
	}
}
