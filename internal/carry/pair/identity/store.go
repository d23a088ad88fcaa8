package identity

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"longhaul/internal/carry/pair/preface"
	"longhaul/internal/sys/connsource"
	"longhaul/internal/words/remedy"
)

// checkInterval is the time for which a process trusts what it has read.
const checkInterval = time.Second

// KnownAfter is the time after which every process knows of a change.
const KnownAfter = checkInterval + 100*time.Millisecond

// Store is a directory with the keys of this host, its peers and its invitations.
// Several processes may use it at the same time. Each sees another's change within a
// second. Methods are safe for several goroutines.
type Store struct {
	dir string

	mu      sync.Mutex
	current *content             // as last read without an error; nil: not yet
	marks   [3]mark              // of the files that current was read from
	checked time.Time            // when marks were last compared
	problem error                // of the last reading
	learnt  map[string]time.Time // when a peer's keys were last changed by its word

	places *connsource.Places // of joins
	joins  takenPrefaces
}

// New returns the store of a directory, which need not exist yet.
func New(dir string) *Store { return &Store{dir: dir, places: connsource.NewPlaces(maxJoins)} }

// Dir is the store's directory.
func (s *Store) Dir() string { return s.dir }

// content is what the files say.
type content struct {
	keys         hostKeys
	peers        peerList
	invitations  invitationList
	damage       error             // of the file of invitations, which are none then
	certificates []tls.Certificate // of keys, in their order
	hostKeys     []preface.Key     // of keys
	joinKeys     []joinKey         // of invitations
}

// inUse is the key with which this host authenticates itself: the old one during a
// rotation, which all peers have. Its index is valid if there is a key.
func (c *content) inUse() int { return len(c.keys) - 1 }

// mark tells a file from its replacement; zero: the file is missing.
type mark struct {
	inode         uint64
	size          int64
	mode, uid     uint32
	changedUnixNs int64 // the last change of the inode
}

func markOf(info fs.FileInfo) mark {
	if info == nil {
		return mark{}
	}
	st := ownerOf(info)
	return mark{st.Ino, st.Size, st.Mode, st.Uid, st.Ctim.Nano()}
}

// stat returns the marks of the files that a content is read from.
func (s *Store) stat() (marks [3]mark, err error) {
	for i, name := range []string{keyFile, peersFile, invitationsFile} {
		info, err := os.Stat(filepath.Join(s.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return marks, unusable("read", filepath.Join(s.dir, name), err)
		}
		if err == nil {
			marks[i] = markOf(info)
		}
	}
	return marks, nil
}

// load returns the content as of at most a second ago. If a file has been damaged since
// it was read, load returns the former content without an error, and [Store.Problem] the
// damage.
func (s *Store) load() (*content, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && time.Since(s.checked) < checkInterval {
		return s.current, nil
	}
	s.problem = s.refresh()
	if s.current == nil {
		return nil, s.problem
	}
	s.checked = time.Now()
	return s.current, nil
}

// refresh reads the files if they have changed. The caller holds the mutex.
func (s *Store) refresh() error {
	marks, err := s.stat()
	if err != nil {
		return err
	}
	if s.current != nil && s.problem == nil && marks == s.marks {
		return nil
	}
	c := &content{}
	if d, err := openDirectory(s.dir); err == nil {
		defer d.Close()
		if c, marks, err = readContent(d); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.current, s.marks = c, marks
	return c.damage
}

// Problem is why the files cannot be used, or nil. Until it is solved a process goes on
// with what it read before.
func (s *Store) Problem() error {
	_, _ = s.load()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// readContent reads the files. Keys and peers count without the invitations, too.
func readContent(d *directory) (*content, [3]mark, error) {
	c := &content{}
	var marks [3]mark
	text, info, err := d.read(keyFile)
	if err != nil {
		return nil, marks, err
	}
	if marks[0] = markOf(info); info != nil {
		if c.keys, err = parseHostKeys(text); err != nil {
			return nil, marks, damaged(filepath.Join(d.path, keyFile), err)
		}
	}
	if text, info, err = d.read(peersFile); err != nil {
		return nil, marks, err
	}
	marks[1] = markOf(info)
	if c.peers, err = parsePeers(text); err != nil {
		return nil, marks, damaged(filepath.Join(d.path, peersFile), err)
	}
	if text, info, err = d.read(invitationsFile); err == nil {
		marks[2] = markOf(info)
		if c.invitations, err = parseInvitations(text); err != nil {
			err = damaged(filepath.Join(d.path, invitationsFile), err)
		}
	}
	c.damage = err
	for _, key := range c.keys {
		c.certificates = append(c.certificates, certificateOf(key))
		public := key.public()
		c.hostKeys = append(c.hostKeys, preface.HostKey(public[:]))
	}
	c.joinKeys = c.invitations.joinKeys()
	return c, marks, nil
}

// forget has the next load read the files.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked, s.marks = time.Time{}, [3]mark{{mode: ^uint32(0)}}
}

// errNoKey is returned if this host has no key yet.
var errNoKey = errors.New("this host has no key for pairs")

// withKey is load for those that need a key of this host.
func (s *Store) withKey() (*content, error) {
	c, err := s.load()
	if err == nil && len(c.keys) == 0 {
		err = remedy.New(fmt.Errorf("%w in %s", errNoKey, s.dir), "make one with longhaul pair key")
	}
	return c, err
}

// Key returns the key in use, and the one that a rotation made; zero: there is no
// rotation. It makes the key of a host that has none.
func (s *Store) Key() (inUse, next PublicKey, made bool, err error) {
	c, err := s.load()
	if err == nil && len(c.keys) == 0 {
		err = s.change(func(c *changing) error {
			made = c.needKey()
			return nil
		})
		if err == nil {
			c, err = s.withKey()
		}
	}
	if err != nil {
		return PublicKey{}, PublicKey{}, false, err
	}
	keys := c.keys.public()
	if len(keys) == MaxKeys {
		next = keys[0]
	}
	return keys[c.inUse()], next, made, nil
}

// needKey makes a key if there is none.
func (c *changing) needKey() (made bool) {
	if len(c.keys) > 0 {
		return false
	}
	c.keys = hostKeys{newPrivateKey()}
	return true
}
