package identity

import (
	"bytes"
	"slices"
)

// changing is a content that one process may change.
type changing struct {
	content
	former  formerKeys
	trusted trustedList
}

// change has f change the content while no other process can, and writes what f has
// changed. It makes a missing directory. If f fails, nothing changes.
func (s *Store) change(f func(c *changing) error) error {
	return s.locked(func(d *directory, c *changing) error {
		before := changing{content{keys: c.keys, peers: clonePeers(c.peers), invitations: slices.Clone(c.invitations)}, c.former, nil}
		if err := f(c); err != nil {
			return err
		}
		if err := c.clash(&before.content); err != nil {
			return err
		}
		c.finishRotation()
		for _, key := range before.keys.public() {
			if len(c.keys) > 0 && !slices.Contains(c.keys.public(), key) {
				c.former = c.former.replaced(key, c.keys[0].public())
			}
		}
		defer s.forget()
		return write(d, &before, c)
	})
}

// locked has f see the content while no other process can change it. It makes a missing
// directory.
func (s *Store) locked(f func(d *directory, c *changing) error) error {
	if err := makeDirectory(s.dir); err != nil {
		return err
	}
	d, err := openDirectory(s.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	c, err := readChanging(d)
	if err != nil {
		return err
	}
	return f(d, c)
}

func readChanging(d *directory) (*changing, error) {
	c, _, err := readContent(d)
	if err == nil {
		err = c.damage
	}
	if err != nil {
		return nil, err
	}
	former, err := readFormer(d)
	if err != nil {
		return nil, err
	}
	trusted, err := readTrusted(d)
	if err != nil {
		return nil, err
	}
	return &changing{*c, former, trusted}, nil
}

// write writes the files that differ. A peer stands before its invitation is used up, and
// a key goes after all peers are known to have its successor. What a key's successor is stands
// before the key goes.
func write(d *directory, before, after *changing) error {
	for _, file := range []struct {
		name     string
		old, new []byte
	}{
		{formerFile, before.former.format(), after.former.format()},
		{peersFile, before.peers.format(), after.peers.format()},
		{keyFile, before.keys.format(), after.keys.format()},
		{invitationsFile, before.invitations.format(), after.invitations.format()},
	} {
		if bytes.Equal(file.old, file.new) {
			continue
		}
		if err := d.write(file.name, file.new); err != nil {
			return err
		}
	}
	return nil
}
