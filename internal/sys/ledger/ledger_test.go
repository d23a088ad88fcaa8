package ledger

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

var must = nettest.Must

func claim(owner string, value int) Claim {
	return Claim{By: By{Owner: owner, Means: Command}, Value: Encode(value)}
}

func ownedBy(owner string) func(Key, Claim) bool {
	return func(_ Key, c Claim) bool { return c.Owner == owner }
}

// TestClaims: the last claim is in force, a second one of an owner replaces the first,
// and one taken back gives way to the claim below.
func TestClaims(t *testing.T) {
	e := &Entry{Former: Encode(1)}
	inForce := func(want int) {
		t.Helper()
		if got := Decode[int](e.InForce()); got != want {
			t.Errorf("%d is in force, want %d", got, want)
		}
	}
	inForce(1)
	e.Put(claim("alice", 2))
	e.Put(claim("bob", 3))
	inForce(3)
	e.Put(claim("alice", 4))
	inForce(4)
	if len(e.Claims) != 2 {
		t.Errorf("claims: %+v", e.Claims)
	}
	if taken, last := e.Take(ownedBy("bob")); len(taken) != 1 || last {
		t.Errorf("took %+v, in force %v", taken, last)
	}
	inForce(4)
	if taken, last := e.Take(ownedBy("alice")); len(taken) != 1 || !last {
		t.Errorf("took %+v, in force %v", taken, last)
	}
	inForce(1)
	if taken, _ := e.Take(ownedBy("alice")); len(taken) != 0 {
		t.Errorf("took %+v twice", taken)
	}
}

// TestFile: the file exists while there are changes, and the directory with it.
func TestFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "host")
	b, err := Open(dir, false)
	must(t, err)
	e := b.Add(&Entry{Key: Key{Kind: Algorithm, Name: "haul"}})
	e.Put(claim("alice", 1))
	must(t, b.Save())
	b.Close()

	dry, err := Open(dir, true)
	must(t, err)
	dry.Drop(func(*Entry) bool { return true })
	must(t, dry.Save())
	dry.Close()

	b, err = Open(dir, false)
	must(t, err)
	if len(b.Entries) != 1 || b.Find(Key{Kind: Algorithm, Name: "haul"}) == nil {
		t.Fatalf("read %+v", b.Entries)
	}
	restore := b.Snapshot()
	b.Entries[0].Put(claim("bob", 2))
	restore()
	if len(b.Entries[0].Claims) != 1 {
		t.Errorf("restored %+v", b.Entries[0])
	}
	b.Drop(func(*Entry) bool { return true })
	must(t, b.Save())
	b.Close()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestDamaged: a file that is cut short, foreign or of another format gives one sentence
// and what to do.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	for _, text := range []string{"", "{", `{"format": 2, "changes": []}`, `{"format": 1, "changes": [null]}`, `{"format": 1, "chances": []}`, `{"format": 1, "changes": [{}]}`} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Open(dir, false)
		if err == nil || !strings.Contains(err.Error(), path+" is damaged") || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(remedy.Of(err), "remove the file") {
			t.Errorf("%q: %v; %s", text, err, remedy.Of(err))
		}
	}
	must(t, os.Remove(path))
	b, err := Open(dir, false) // the lock was released
	must(t, err)
	b.Close()
}

// TestPermission: another user's process gets one sentence, and can read.
func TestPermission(t *testing.T) {
	nettest.RequireRoot(t)
	dir := filepath.Join(nettest.OpenTempDir(t), "host")
	b, err := Open(dir, false)
	must(t, err)
	b.Add(&Entry{Key: Key{Kind: Algorithm, Name: "haul"}})
	must(t, b.Save())
	b.Close()
	for _, dir := range []string{dir, filepath.Join(filepath.Dir(dir), "missing")} {
		must(t, nettest.AsUser(65534, func() error {
			if _, err := Open(dir, false); !errors.Is(err, fs.ErrPermission) || remedy.Of(err) != "run it as root" {
				t.Errorf("%s: %v; %s", dir, err, remedy.Of(err))
			}
			return nil
		}))
	}
	must(t, nettest.AsUser(65534, func() error {
		b, err := Read(dir)
		if err == nil && len(b.Entries) != 1 {
			t.Errorf("read %+v", b.Entries)
		}
		return err
	}))
}

// TestConcurrently: changes of several commands do not get lost.
func TestConcurrently(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "host")
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			key := Key{Kind: Route, Name: string(rune('a' + i))}
			for range 50 {
				b, err := Open(dir, false)
				if err != nil {
					t.Error(err)
					return
				}
				if b.Find(key) == nil {
					b.Add(&Entry{Key: key})
				} else {
					b.Drop(func(e *Entry) bool { return e.Key == key })
				}
				if err := b.Save(); err != nil {
					t.Error(err)
				}
				b.Close()
			}
		})
	}
	group.Wait()
	b, err := Read(dir)
	must(t, err)
	if len(b.Entries) != 0 {
		t.Errorf("left: %+v", b.Entries)
	}
}

// TestUsers: an ended relay keeps no algorithm loaded.
func TestUsers(t *testing.T) {
	running := *ThisProcess()
	ended := running
	ended.Start++
	relay := func(p Process) Claim { return Claim{By: By{Owner: "relay x", Means: Relay, Process: &p}} }
	b := &Book{Entries: []*Entry{
		{Key: Key{Kind: Algorithm, Name: "haul"}, Claims: []Claim{relay(running), relay(ended)}},
		{Key: Key{Kind: Algorithm, Name: "hybla"}, Claims: []Claim{relay(ended)}},
		{Key: Key{Kind: Route, Name: "10.0.0.0/8"}, Claims: []Claim{{Needs: "haul"}}},
	}}
	if users := b.Users("haul"); len(users) != 2 {
		t.Errorf("users of haul: %+v", users)
	}
	if users := b.Users("hybla"); len(users) != 0 {
		t.Errorf("users of hybla: %+v", users)
	}
	own := OwnClaims("alice")
	if !own(Key{}, relay(ended)) || own(Key{}, relay(running)) || !own(Key{}, claim("alice", 1)) || own(Key{}, claim(Unknown, 1)) || own(Key{}, claim("bob", 1)) {
		t.Error("wrong claims are one's own")
	}
	// A relay's new process takes the place of its ended one.
	e := b.Entries[1]
	e.Put(relay(running))
	if len(e.Claims) != 1 || e.Claims[0].Ended() {
		t.Errorf("claims: %+v", e.Claims)
	}
}

func TestCurrentOwner(t *testing.T) {
	nobody := func(key string) string { return map[string]string{"SUDO_USER": "nobody"}[key] }
	invalid := func(key string) string { return map[string]string{"SUDO_USER": "no such user\x1b"}[key] }
	none := func(string) string { return "" }
	if os.Geteuid() == 0 {
		if got := CurrentOwner(nobody); got != "nobody" {
			t.Errorf("by sudo: %q", got)
		}
	}
	if got := CurrentOwner(invalid); got != CurrentOwner(none) || got == "" {
		t.Errorf("with an invalid user: %q", got)
	}
	if got := OfRelay(none, "dns"); got.Owner != "relay dns" || got.Process == nil || got.Ended() {
		t.Errorf("a relay: %+v", got)
	}
}

func FuzzRead(f *testing.F) {
	good, err := json.Marshal(document{format, []*Entry{{Key: Key{Kind: MSS, Name: "2"}, Claims: []Claim{claim("alice", 1)}}}})
	must(f, err)
	f.Add(good)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, fileName), text, 0o600))
		b, err := Open(dir, false)
		if err != nil {
			return
		}
		defer b.Close()
		must(t, b.Save())
		again, err := Read(dir)
		if err != nil || len(again.Entries) != len(b.Entries) {
			t.Fatalf("%v, %v", again, err)
		}
	})
}
