package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"longhaul/test/nettest"
)

func TestKeyIsMadeOnce(t *testing.T) {
	s := newStore(t)
	key := own(t, s)
	again, next, made, err := New(s.dir).Key()
	if err != nil || made || again != key || !next.IsZero() {
		t.Errorf("the second time: %v, %v, %v, %v", again, next, made, err)
	}
	for path, want := range map[string]fs.FileMode{"": 0o700 | fs.ModeDir, keyFile: 0o600} {
		info, err := os.Stat(filepath.Join(s.dir, path))
		nettest.Must(t, err)
		if info.Mode() != want {
			t.Errorf("mode of %q: %v, want %v", path, info.Mode(), want)
		}
	}
	pin(t, s, "b", testKey(1).public())
	if info, err := os.Stat(filepath.Join(s.dir, peersFile)); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode of the peers: %v, %v", info.Mode(), err)
	}
	left, err := filepath.Glob(filepath.Join(s.dir, "*"+newSuffix))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestPinAndRemove(t *testing.T) {
	s := newStore(t)
	b, c := testKey(1).public(), testKey(2).public()
	pin(t, s, "b", b)
	if added, err := s.Pin("b", b); added || err != nil {
		t.Errorf("the same peer again: %v, %v", added, err)
	}
	_, err := s.Pin("b", c)
	checkMistake(t, err, "there is a peer b already")
	_, err = s.Pin("c", b)
	checkMistake(t, err, "the peer b has the key "+b.Short()+" already")
	_, err = s.Pin("self", own(t, s))
	checkMistake(t, err, "this is the key of this host itself")
	_, err = s.Pin("a b", c)
	checkMistake(t, err, `invalid name "a b" of a peer`)
	pin(t, s, "a", c)
	peers, err := s.Peers()
	if err != nil || len(peers) != 2 || peers[0].Name != "a" || peers[1].Name != "b" {
		t.Errorf("peers %v, %v", peers, err)
	}
	if name, known := s.PeerOf(c[:]); name != "a" || !known {
		t.Errorf("the key is of %q", name)
	}
	nettest.Must(t, s.Remove("a"))
	if _, known := s.PeerOf(c[:]); known {
		t.Error("a removed peer's key is known")
	}
	if keys := s.PeerKeys("a"); keys != nil {
		t.Errorf("a removed peer has the keys %v", keys)
	}
	err = s.Remove("a")
	checkMistake(t, err, "there is no such peer: a")
	if !errors.Is(err, ErrNoPeer) {
		t.Errorf("%v is not ErrNoPeer", err)
	}
	none := New(filepath.Join(t.TempDir(), "none"))
	checkMistake(t, none.Remove("a"), "there is no such peer: a")
	if _, err := os.Stat(none.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failed removal makes the directory: %v", err)
	}
}

// TestReload holds that a process sees another's change within a second, and asks the
// filesystem no more often.
func TestReload(t *testing.T) {
	a := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		running := New(a.dir)
		if keys := running.PeerKeys("b"); len(keys) > 0 {
			t.Fatalf("keys %v", keys)
		}
		pin(t, a, "b", testKey(1).public())
		if keys := running.PeerKeys("b"); len(keys) > 0 {
			t.Errorf("the files are read again at once")
		}
		time.Sleep(checkInterval)
		if keys := running.PeerKeys("b"); len(keys) != 1 {
			t.Errorf("keys %v after a second", keys)
		}
		nettest.Must(t, a.Remove("b"))
		time.Sleep(checkInterval)
		if keys := running.PeerKeys("b"); len(keys) > 0 {
			t.Errorf("a removed peer has the keys %v", keys)
		}
		nettest.Must(t, os.RemoveAll(a.dir))
		time.Sleep(checkInterval)
		if keys := running.PublicKeys(); len(keys) > 0 {
			t.Errorf("a removed directory has the keys %v", keys)
		}
	})
}

// TestDamageKeepsTheFormer holds that a running process goes on with what it has read,
// and says why, until the file is good again.
func TestDamageKeepsTheFormer(t *testing.T) {
	a := newStore(t)
	pin(t, a, "b", testKey(1).public())
	good, err := os.ReadFile(filepath.Join(a.dir, peersFile))
	nettest.Must(t, err)
	synctest.Test(t, func(t *testing.T) {
		running := New(a.dir)
		_, err := running.Peers()
		nettest.Must(t, err)
		path := filepath.Join(a.dir, peersFile)
		for _, c := range []struct {
			text string
			mode fs.FileMode
			want string
		}{
			{string(good[:len(good)-9]), 0o600, "the file " + path + " is damaged: line 3: invalid key: it is incomplete or altered"},
			{string(good), 0o644, path + " is open to others (mode 0644)"},
			{strings.Repeat("#", maxFile+1), 0o600, "the file " + path + " is damaged: more than 1048576 bytes"},
		} {
			rewrite(t, a, peersFile, c.text, c.mode)
			time.Sleep(checkInterval)
			if keys := running.PeerKeys("b"); len(keys) != 1 {
				t.Errorf("keys %v with a damaged file", keys)
			}
			checkMistake(t, running.Problem(), c.want)
			_, err = New(a.dir).Peers()
			checkMistake(t, err, c.want)
			_, err = running.Pin("c", testKey(2).public())
			checkMistake(t, err, c.want)
			if now, err := os.ReadFile(path); err != nil || string(now) != c.text {
				t.Errorf("a refused change has changed the file: %v", err)
			}
		}
		rewrite(t, a, peersFile, string(good), 0o600)
		time.Sleep(checkInterval)
		if err := running.Problem(); err != nil {
			t.Errorf("problem %v with a good file", err)
		}
	})
}

// TestUnusableDirectory holds what is said of directories and files that cannot be used.
func TestUnusableDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	nettest.Must(t, os.WriteFile(file, nil, 0o600))
	_, _, _, err := New(file).Key()
	checkMistake(t, err, "cannot read "+filepath.Join(file, keyFile)+": not a directory")
	_, _, _, err = New(filepath.Join(file, "below")).Key()
	checkMistake(t, err, "cannot read "+filepath.Join(file, "below", keyFile)+": not a directory")

	open := newStore(t)
	nettest.Must(t, os.Chmod(open.dir, 0o777))
	_, _, _, err = New(open.dir).Key()
	checkMistake(t, err, "others can write to the directory "+open.dir+" (mode 0777)")

	s := newStore(t)
	path := filepath.Join(s.dir, keyFile)
	nettest.Must(t, os.Chmod(path, 0o640))
	_, _, _, err = New(s.dir).Key()
	checkMistake(t, err, path+" is open to others (mode 0640)")
	nettest.Must(t, os.Remove(path))
	nettest.Must(t, os.Mkdir(path, 0o700))
	_, _, _, err = New(s.dir).Key()
	checkMistake(t, err, path+" is not a regular file")
	nettest.Must(t, os.Remove(path))
	nettest.Must(t, os.Symlink("/etc/passwd", path))
	if _, _, _, err = New(s.dir).Key(); err == nil {
		t.Error("a link out of the directory is followed")
	}
	rewrite(t, s, keyFile, "nonsense\n", 0o600)
	_, _, _, err = New(s.dir).Key()
	checkMistake(t, err, "the file "+path+" is damaged: line 1: it does not begin with longhaul-pair-private-1:")
}

// TestOtherUsers holds who may use whose files.
func TestOtherUsers(t *testing.T) {
	nettest.RequireRoot(t)
	const service, other = 61234, 61235
	base := nettest.OpenTempDir(t)
	state := filepath.Join(base, "state")
	nettest.Must(t, os.Mkdir(state, 0o700))
	nettest.Must(t, os.Chown(state, service, service))

	// Root makes the key in the state directory of the service, and peers, which the
	// service reads and changes.
	s := New(filepath.Join(state, "pair"))
	key := own(t, s)
	pin(t, s, "b", testKey(1).public())
	nettest.Must(t, nettest.AsUser(service, func() error {
		seen, _, _, err := New(s.dir).Key()
		if err == nil && seen != key {
			err = errors.New("another key")
		}
		if err == nil {
			_, err = New(s.dir).Pin("c", testKey(2).public())
		}
		return err
	}))
	peer(t, New(s.dir), "c")

	// Nobody else does.
	nettest.Must(t, os.Chmod(state, 0o755))
	nettest.Must(t, os.Chmod(s.dir, 0o755))
	err := nettest.AsUser(other, func() error { _, err := New(s.dir).Peers(); return err })
	checkMistake(t, err, "the directory "+s.dir+" belongs to user 61234")

	// A directory that cannot be written.
	mine := filepath.Join(base, "mine")
	nettest.Must(t, os.Mkdir(mine, 0o755))
	err = nettest.AsUser(other, func() error { _, _, _, err := New(filepath.Join(mine, "pair")).Key(); return err })
	checkMistake(t, err, "cannot make "+mine+"/pair: permission denied")
	err = nettest.AsUser(other, func() error { _, _, _, err := New(mine).Key(); return err })
	checkMistake(t, err, "cannot write "+mine+"/key: permission denied")

	// A file that somebody else has put there.
	root := newStore(t)
	nettest.Must(t, os.Chown(filepath.Join(root.dir, keyFile), other, other))
	_, _, _, err = New(root.dir).Key()
	checkMistake(t, err, filepath.Join(root.dir, keyFile)+" belongs to user 61235")
}

// TestManyChangers holds that no change of several at a time is lost.
func TestManyChangers(t *testing.T) {
	s := newStore(t)
	var all sync.WaitGroup
	const stores, peers = 4, 5
	errs := make([]error, stores)
	for i := range stores {
		all.Go(func() {
			mine := New(s.dir)
			for j := range peers {
				_, err := mine.Pin(fmt.Sprintf("peer-%d-%d", i, j), testKey(byte(100+i*peers+j)).public())
				errs[i] = errors.Join(errs[i], err, mine.Problem())
			}
		})
	}
	all.Wait()
	nettest.Must(t, errors.Join(errs...))
	if got, err := New(s.dir).Peers(); err != nil || len(got) != stores*peers {
		t.Errorf("%d peers, %v", len(got), err)
	}
}

func TestDirectory(t *testing.T) {
	getenv := func(pairs ...string) func(string) string {
		return func(name string) string {
			if i := slices.Index(pairs, name); i >= 0 {
				return pairs[i+1]
			}
			return ""
		}
	}
	if got := Directory(getenv("STATE_DIRECTORY", "/var/lib/longhaul:/other")); got != "/var/lib/longhaul/pair" {
		t.Errorf("in a unit: %s", got)
	}
	if os.Geteuid() == 0 {
		if got := Directory(getenv("HOME", "/root")); got != RootDirectory {
			t.Errorf("root's: %s", got)
		}
		var xdg, home, none string
		nettest.Must(t, nettest.AsUser(65534, func() error {
			xdg = Directory(getenv("XDG_STATE_HOME", "/s", "HOME", "/h"))
			home = Directory(getenv("HOME", "/h"))
			none = Directory(getenv())
			return nil
		}))
		if xdg != "/s/longhaul/pair" || home != "/h/.local/state/longhaul/pair" || none != "" {
			t.Errorf("a user's: %q, %q, %q", xdg, home, none)
		}
	}
}

func TestList(t *testing.T) {
	s := newStore(t)
	pin(t, s, "site-b", testKey(1).public())
	pin(t, s, "site-d/d1", testKey(2).public())
	pin(t, s, "site-d/d2", testKey(3).public())
	_, err := s.Invite("site-c", "site-a", []string{"a:6000"})
	nettest.Must(t, err)
	l, err := s.List()
	nettest.Must(t, err)
	if l.Key != own(t, s).String() || l.NextKey != "" || len(l.Peers) != 3 || len(l.Invitations) != 1 || l.Directory != s.dir {
		t.Errorf("list %+v", l)
	}
	_, err = s.Rotate()
	nettest.Must(t, err)
	l, err = s.List()
	nettest.Must(t, err)
	for i := range l.Peers {
		l.Peers[i].Since = time.Date(2026, time.November, 25, 12, 0, 0, 0, time.Local)
	}
	var text strings.Builder
	nettest.Must(t, l.WriteText(&text, l.Invitations[0].Expires.Add(-InvitationLife)))
	checkGolden(t, "list", []byte(text.String()))
	text.Reset()
	l, err = New(filepath.Join(t.TempDir(), "none")).List()
	nettest.Must(t, err)
	nettest.Must(t, l.WriteText(&text, noon))
	if text.String() != "no peer: longhaul pair invite NAME begins a pairing\n" {
		t.Errorf("an empty list: %q", text.String())
	}
}
