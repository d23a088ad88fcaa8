package identity

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/test/nettest"
)

// TestApply holds what a declared list makes of a list of peers: keys are numbers of testKey, and
// this host has 1, and had 11 before.
func TestApply(t *testing.T) {
	for _, c := range []struct {
		name         string
		had, wanted  string
		changes      string
		peers        string
		own          string
		outdated     string
		formerOfPeer [2]byte
	}{
		{name: "first", wanted: "b=2 c=3", changes: "added b, added c", peers: "b=2 c=3"},
		{name: "again", had: "b=2 c=3", wanted: "c=3 b=2", peers: "b=2 c=3"},
		{name: "removed", had: "b=2 c=3", wanted: "c=3", changes: "removed b", peers: "c=3"},
		{name: "another key", had: "b=2", wanted: "b=3", changes: "changed b was 2", peers: "b=3"},
		{name: "renamed", had: "b=2", wanted: "b/1=2 b/2=3", changes: "renamed b/1 from b, added b/2", peers: "b/1=2 b/2=3"},
		{name: "renamed with another key", had: "b=2,3", wanted: "c=4,2", changes: "renamed c from b was 2,3", peers: "c=4,2"},
		{name: "names change places", had: "b=2 c=3", wanted: "b=3 c=2", changes: "renamed b from c, renamed c from b", peers: "b=3 c=2"},
		{name: "own entry", had: "b=2", wanted: "a=1 b=2", peers: "b=2", own: "a"},
		{name: "own entry with two keys", had: "b=2", wanted: "a=5,1 b=2", peers: "b=2", own: "a"},
		{name: "own entry of before", had: "b=2", wanted: "a=11 b=2", peers: "b=2", own: "a"},
		{name: "only this host", had: "b=2", wanted: "a=1", changes: "removed b", own: "a"},
		{name: "a rotation begins", had: "b=2", wanted: "b=3,2", changes: "changed b was 2", peers: "b=3,2"},
		{name: "a rotation that the list does not know", had: "b=3,2", wanted: "b=2", peers: "b=3,2"},
		{name: "both keys in the other order", had: "b=3,2", wanted: "b=2,3", peers: "b=3,2"},
		{name: "the old key goes", had: "b=3,2", wanted: "b=3", changes: "changed b was 3,2", peers: "b=3"},
		{name: "an announced key is another host's", had: "b=3,2", wanted: "b=2 c=3", changes: "changed b was 3,2, added c", peers: "b=2 c=3"},
		{name: "a list from before a rotation", had: "b=3", wanted: "b=2", peers: "b=3", outdated: "b", formerOfPeer: [2]byte{2, 3}},
		{name: "a list from within a rotation", had: "b=3", wanted: "b=3,2", peers: "b=3", formerOfPeer: [2]byte{2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			had := changing{content{keys: hostKeys{testKey(1)}}, formerKeys{{testKey(11).public(), testKey(1).public()}}, nil}
			if k := c.formerOfPeer; k[0] > 0 {
				had.former = had.former.replaced(testKey(k[0]).public(), testKey(k[1]).public())
			}
			for _, w := range declare(c.had) {
				had.peers = append(had.peers, Peer{Name: w.Name, Keys: w.Keys, Since: noon, Holds: testKey(1).public()})
			}
			for run, changes := range []string{c.changes, ""} {
				a, err := had.apply(declare(c.wanted), noon.Add(time.Hour))
				nettest.Must(t, err)
				if got := describe(a.Changes); got != changes {
					t.Errorf("run %d changes %q, want %q", run, got, changes)
				}
				if got := describePeers(had.peers); got != c.peers {
					t.Errorf("run %d leaves %q, want %q", run, got, c.peers)
				}
				if a.ThisHost != c.own || strings.Join(a.Outdated, " ") != c.outdated {
					t.Errorf("run %d: this host is %q, outdated %q", run, a.ThisHost, a.Outdated)
				}
				if stay := a.Unchanged; run == 1 && stay != len(had.peers) {
					t.Errorf("%d unchanged of %v", stay, had.peers)
				}
			}
		})
	}
	// A peer keeps since when it is one, and which key of this host it has.
	had := changing{content: content{keys: hostKeys{testKey(1)}, peers: testPeers()[1:2]}}
	_, err := had.apply([]Wanted{{"site-b/b1", []PublicKey{testKey(2).public()}}}, noon.Add(9*time.Hour))
	nettest.Must(t, err)
	if p := had.peers[0]; !p.Since.Equal(noon.Add(time.Hour)) || p.Holds != testKey(9).public() || len(p.Keys) != 2 {
		t.Errorf("a renamed peer is %+v", p)
	}
	// Two entries of one host, with the former and the present key.
	had.former = formerKeys{{testKey(4).public(), testKey(2).public()}}
	_, err = had.apply(declare("x=4 y=2"), noon)
	checkMistake(t, err, "the peer x has the key "+testKey(2).public().Short()+" already")
}

// TestApplyToMany: what each of many peers takes does not grow with their number. With a copy of the list
// for each it was 50 times as much here.
func TestApplyToMany(t *testing.T) {
	bytesEach := func(n int) uint64 {
		var wanted []Wanted
		for i := range n {
			var key PublicKey
			binary.BigEndian.PutUint32(key[:], uint32(i)+1)
			wanted = append(wanted, Wanted{fmt.Sprintf("site-%05d/host", i), []PublicKey{key}})
		}
		c := changing{content: content{keys: hostKeys{testKey(1)}}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, want := range []int{0, n} { // all are new, and then unchanged
			if a, err := c.apply(wanted, noon); err != nil || a.Unchanged != want {
				t.Fatalf("%d unchanged of %d, %v", a.Unchanged, n, err)
			}
		}
		if _, err := parsePeers(c.peers.format()); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(n)
	}
	if few, many := bytesEach(100), bytesEach(5000); many > 4*few {
		t.Errorf("each of 100 peers takes %d bytes, and each of 5000 takes %d", few, many)
	}
}

// declare reads "b=2 c=4,3".
func declare(text string) (wanted []Wanted) {
	for word := range strings.FieldsSeq(text) {
		name, keys, _ := strings.Cut(word, "=")
		w := Wanted{Name: name}
		for key := range strings.SplitSeq(keys, ",") {
			var n byte
			fmt.Sscan(key, &n)
			w.Keys = append(w.Keys, testKey(n).public())
		}
		wanted = append(wanted, w)
	}
	return wanted
}

func numbers(keys []PublicKey) string {
	var all []string
	for _, key := range keys {
		for n := range byte(20) {
			if testKey(n).public() == key {
				all = append(all, fmt.Sprint(n))
			}
		}
	}
	return strings.Join(all, ",")
}

func describe(changes []Change) string {
	var all []string
	for _, c := range changes {
		text := string(c.Kind) + " " + c.Peer
		if c.FormerName != "" {
			text += " from " + c.FormerName
		}
		if len(c.FormerKeys) > 0 {
			text += " was " + numbers(c.FormerKeys)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func describePeers(peers peerList) string {
	var all []string
	for _, p := range peers {
		all = append(all, p.Name+"="+numbers(p.Keys))
	}
	return strings.Join(all, " ")
}

// TestApplyAfterRotation holds that a list from before a rotation means the same hosts to its peers
// and to the host itself, and that a peer of a former key that is pinned by hand counts.
func TestApplyAfterRotation(t *testing.T) {
	a, b := newStore(t), newStore(t)
	list := []Wanted{{"a", []PublicKey{own(t, a)}}, {"b", []PublicKey{own(t, b)}}}
	oldB := own(t, b)
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []*Store{a, b} {
			_, err := s.Apply(list, false)
			nettest.Must(t, err)
		}
		_, err := b.Rotate()
		nettest.Must(t, err)
		applyNothing(t, list, a, b)
		announced := b.Announced("a")
		nettest.Must(t, a.Learn("b", announced))
		applyNothing(t, list, a, b)
		nettest.Must(t, b.Taken("a", announced))
		applyNothing(t, list, b)
		r := shake(t, clientTLS(t, b, "a"), a.ServerTLS(nil)) // a sees the new key in use
		if r.clientErr != nil || r.serverErr != nil {
			t.Fatalf("no handshake with the new key: %v, %v", r.clientErr, r.serverErr)
		}
		applyNothing(t, list, a, b)
		if keys := peer(t, a, "b").Keys; len(keys) != 1 || keys[0] != own(t, b) {
			t.Errorf("b has the keys %v", keys)
		}
		nettest.Must(t, a.Remove("b"))
		pin(t, a, "b", oldB)
		applyNothing(t, list, a)
	})
}

func applyNothing(t *testing.T, list []Wanted, stores ...*Store) {
	t.Helper()
	for _, s := range stores {
		if applied, err := s.Apply(list, false); err != nil || len(applied.Changes) > 0 {
			t.Errorf("the list changes %v in %s, %v", applied.Changes, s.dir, err)
		}
	}
}

// TestApplyLeavesTheFormer holds that a check, a refusal, and a write that fails change nothing.
func TestApplyLeavesTheFormer(t *testing.T) {
	s := newStore(t)
	pin(t, s, "b", testKey(2).public())
	before, err := os.ReadFile(filepath.Join(s.dir, peersFile))
	nettest.Must(t, err)
	same := func(what string) {
		t.Helper()
		if now, err := os.ReadFile(filepath.Join(s.dir, peersFile)); err != nil || string(now) != string(before) {
			t.Errorf("%s: %q, %v", what, now, err)
		}
	}
	a, err := s.Apply(declare("c=3"), true)
	if err != nil || describe(a.Changes) != "added c, removed b" && describe(a.Changes) != "removed b, added c" {
		t.Errorf("a check says %+v, %v", a, err)
	}
	same("a check")
	if _, err := s.Apply(declare("c=3 d=3"), false); err == nil {
		t.Error("a key of two hosts is taken")
	}
	same("a refusal")
	d, err := openDirectory(s.dir)
	nettest.Must(t, err)
	defer d.Close()
	checkMistake(t, d.write(peersFile, make([]byte, maxFile+1)),
		fmt.Sprintf("the file %s would have more than %d bytes", filepath.Join(s.dir, peersFile), maxFile))
	same("a list that is too long")
	// What an interrupted write left behind cannot be a directory; one stands for a full filesystem.
	temp := filepath.Join(s.dir, peersFile+newSuffix)
	nettest.Must(t, os.MkdirAll(filepath.Join(temp, "x"), 0o700))
	if _, err := s.Apply(declare("c=3"), false); err == nil {
		t.Error("a write that fails is none")
	}
	same("a write that fails")
	nettest.Must(t, os.RemoveAll(temp))
	nettest.Must(t, os.WriteFile(temp, []byte("half a li"), 0o600)) // a process died here
	_, err = s.Apply(declare("c=3"), false)
	nettest.Must(t, err)
	peer(t, s, "c")
	none := New(filepath.Join(t.TempDir(), "none"))
	if _, err := none.Apply(declare("c=3"), false); !errors.Is(err, errNoKey) {
		t.Errorf("a host without a key: %v", err)
	}
}

// TestApplyBesideJoins holds that lists and joins at a time leave what one of their orders leaves.
func TestApplyBesideJoins(t *testing.T) {
	s := newStore(t)
	var all sync.WaitGroup
	const joins = 6
	for i := range joins {
		all.Go(func() {
			if _, err := New(s.dir).Pin(fmt.Sprintf("join-%d", i), testKey(byte(100+i)).public()); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			a, err := New(s.dir).Apply(declare("b=2 c=3"), false)
			if err != nil || a.Unchanged+len(a.Changes) < 2 {
				t.Errorf("apply: %+v, %v", a, err)
			}
		})
	}
	all.Wait()
	peers, err := New(s.dir).Peers()
	nettest.Must(t, err)
	for _, p := range peers {
		if !slices.Contains([]string{"b", "c"}, p.Name) && !strings.HasPrefix(p.Name, "join-") {
			t.Errorf("peer %s", p.Name)
		}
	}
	peer(t, New(s.dir), "b")
	peer(t, New(s.dir), "c")
}

// TestSites holds how a peer becomes the first host of a site, and what a site's name means.
func TestSites(t *testing.T) {
	s := newStore(t)
	b1, b2 := testKey(1).public(), testKey(2).public()
	pin(t, s, "site-b", b1)
	_, err := s.Pin("site-b/b2", b2)
	checkMistake(t, err, "site-b is one peer here, and no site that site-b/b2 could be a host of")
	_, err = s.Invite("site-b/b2", "site-a", []string{"a:1"})
	checkMistake(t, err, "site-b is one peer here, and no site that site-b/b2 could be a host of")
	nettest.Must(t, s.Rename("site-b", "site-b/b1"))
	nettest.Must(t, s.Known("site-b"))
	if keys := s.PeerKeys("site-b"); len(keys) != 1 || PublicKey(keys[0]) != b1 {
		t.Errorf("a session that began under the former name has the keys %v", keys)
	}
	nettest.Must(t, s.Learn("site-b", testKey(3).PrivateKey.Public().(ed25519.PublicKey)))
	if keys := peer(t, s, "site-b/b1").Keys; len(keys) != 2 {
		t.Errorf("what it announces there is not stored: %v", keys)
	}
	pin(t, s, "site-b/b2", b2)
	if hosts := s.Hosts("site-b"); !slices.Equal(hosts, []string{"site-b/b1", "site-b/b2"}) {
		t.Errorf("hosts %v", hosts)
	}
	if keys := s.PeerKeys("site-b"); len(keys) != 3 {
		t.Errorf("the site has the keys %v", keys)
	}
	_, err = s.Pin("site-b", testKey(4).public())
	checkMistake(t, err, "site-b is a site here, with the host site-b/b1")
	checkMistake(t, s.Remove("site-b"), "site-b is a site, with the hosts site-b/b1, site-b/b2")
	checkMistake(t, s.Rename("site-b", "x"), "site-b is a site, with the hosts site-b/b1, site-b/b2")
	nettest.Must(t, s.Remove("site-b/b1"))
	nettest.Must(t, s.Rename("site-b/b2", "site-b"))
	pin(t, s, "site-bb", testKey(5).public()) // of another site
}

// TestSuccessor: a key has a successor by a rotation, whether the host has announced that or a declared list
// ends it, and none if a list gives the peer another key.
func TestSuccessor(t *testing.T) {
	s := newStore(t)
	is := func(key, want byte) {
		t.Helper()
		was := testKey(key).public()
		next, err := s.Successor(was[:])
		nettest.Must(t, err)
		if now := testKey(want).public(); PublicKey(next) != now {
			t.Errorf("the successor of %d is %s", key, numbers([]PublicKey{PublicKey(next)}))
		}
	}
	apply := func(text string) {
		t.Helper()
		_, err := s.Apply(declare(text), false)
		nettest.Must(t, err)
	}
	apply("b=2 c=6")
	is(2, 2)
	apply("b=3,2 c=6")
	is(2, 2)
	apply("b=3 c=6") // the list ends the rotation
	is(2, 3)
	apply("b=4 c=7") // others
	is(3, 3)
	is(2, 3)
	is(6, 6)
	nettest.Must(t, s.Learn("c", bare([]PublicKey{testKey(8).public()})[0]))
	nettest.Must(t, s.settle("c", testKey(8).public()))
	is(7, 8)
	if next, err := New(filepath.Join(t.TempDir(), "missing")).Successor(bare([]PublicKey{testKey(1).public()})[0]); err != nil || next == nil {
		t.Errorf("without a directory: %v, %v", next, err)
	}
}
