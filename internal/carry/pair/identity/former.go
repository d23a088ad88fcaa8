package identity

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

const formerFileHead = "# Keys that hosts have replaced, each with the one in its place, so that an older list means the same hosts.\n"

// maxFormer bounds the former keys that are remembered; the oldest go first.
const maxFormer = 4096

// formerKey is a key that its host has replaced.
type formerKey struct{ key, successor PublicKey }

// formerKeys are the replaced keys of this host and of its peers, the oldest first. A declared list
// that was written before a rotation has them; see [Store.Apply].
type formerKeys []formerKey

// format is the text that parseFormer reads.
func (l formerKeys) format() []byte {
	var b bytes.Buffer
	b.WriteString(formerFileHead)
	for _, f := range l {
		fmt.Fprintf(&b, "%s %s\n", f.key, f.successor)
	}
	return b.Bytes()
}

// parseFormer reads the file of former keys.
func parseFormer(text []byte) (l formerKeys, err error) {
	err = eachLine(text, func(line string) error {
		words := strings.Fields(line)
		if len(words) != 2 {
			return fmt.Errorf("%d words, want a key and its successor", len(words))
		}
		var f formerKey
		if f.key, err = ParsePublicKey(words[0]); err != nil {
			return err
		}
		if f.successor, err = ParsePublicKey(words[1]); err != nil {
			return err
		}
		l = l.replaced(f.key, f.successor)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// replaced adds that a host uses another key instead of one. A successor is no former key, so that
// no chain of successors is a circle.
func (l formerKeys) replaced(key, successor PublicKey) formerKeys {
	if key == successor {
		return l
	}
	l = append(l.without(key).without(successor), formerKey{key, successor})
	return l[max(0, len(l)-maxFormer):]
}

// without forgets that a key was replaced: it is in use.
func (l formerKeys) without(key PublicKey) formerKeys {
	return slices.DeleteFunc(slices.Clone(l), func(f formerKey) bool { return f.key == key })
}

// successors are former keys with those in their place.
type successors map[PublicKey]PublicKey

func (l formerKeys) successors() successors {
	all := make(successors, len(l))
	for _, f := range l {
		all[f.key] = f.successor
	}
	return all
}

// readFormer reads the file of former keys. A missing one is empty.
func readFormer(d *directory) (formerKeys, error) {
	text, _, err := d.read(formerFile)
	if err != nil {
		return nil, err
	}
	l, err := parseFormer(text)
	if err != nil {
		return nil, damaged(filepath.Join(d.path, formerFile), err)
	}
	return l, nil
}

// Successor is the key that rotations have put in place of one: that key itself, if none has. It reads a file
// each time.
func (s *Store) Successor(key ed25519.PublicKey) (ed25519.PublicKey, error) {
	was, err := toKey(key)
	if err != nil {
		return nil, err
	}
	d, err := openDirectory(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return key, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	former, err := readFormer(d)
	if err != nil {
		return nil, err
	}
	next := former.successors().newest(was)
	return next[:], nil
}

// newest returns the key that a host uses in place of another one by now.
func (s successors) newest(key PublicKey) PublicKey {
	for {
		next, replaced := s[key]
		if !replaced {
			return key
		}
		key = next
	}
}
