package config

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/words/remedy"
)

// A list of peers has a line for each host: its name, and its public key, or two during a
// rotation. The lines of several hosts, one after the other, are a list.

// entryHint is how a host's entry comes about.
const entryHint = "longhaul pair key --as NAME prints the entry of a host"

// FormatPeer is the entry of a host in a list of peers.
func FormatPeer(w identity.Wanted) string {
	name := w.Name
	if strings.EqualFold(name, "null") {
		name = `"` + name + `"` // YAML has a value of that name
	}
	if len(w.Keys) == 1 {
		return fmt.Sprintf("%s: %s\n", name, w.Keys[0])
	}
	text := name + ":\n"
	for _, key := range w.Keys {
		text += fmt.Sprintf("  - %s\n", key)
	}
	return text
}

// LoadPeers reads a list of peers. The error is an [Errors].
func LoadPeers(path string) ([]identity.Wanted, error) {
	root, err := parseFile(path)
	return decodePeers(root, err)
}

// ReadPeers is LoadPeers for an open file. name is for messages.
func ReadPeers(name string, r io.Reader) ([]identity.Wanted, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, Errors{{Position{File: name}, fmt.Sprintf("cannot be read: %v", err), "give the list as a file"}}
	}
	root, err := parseText(name, text)
	return decodePeers(root, err)
}

func decodePeers(root *node, err error) ([]identity.Wanted, error) {
	var errs Errors
	if errors.As(err, &errs) && len(errs) == 1 && errs[0].Problem == emptyFile {
		errs[0].Fix = entryHint // and not that of a configuration
	}
	if err != nil {
		return nil, err
	}
	d := &decoder{}
	peers := d.peerList(root)
	if len(d.errs) > 0 {
		return nil, d.errs
	}
	return peers, nil
}

// peerList decodes the list. No name and no key is there twice, and no name is a peer's and a site's.
func (d *decoder) peerList(root *node) (peers []identity.Wanted) {
	if root.kind != mapping {
		d.errorf(root, "write NAME: KEY on each line; "+entryHint, "a list of peers must be a mapping, not %s", root.kind)
		return nil
	}
	if len(root.entries) == 0 {
		d.errorf(root, entryHint, "the list has no peer")
	}
	lines := map[identity.PublicKey]int{}
	names, sites := map[string]int{}, map[string]*node{} // lines of names, and the first host of a site
	for _, e := range root.entries {
		w := identity.Wanted{Name: e.key.text, Keys: d.peerKeys(e.value)}
		if err := identity.CheckName(w.Name); err != nil {
			d.errorf(e.key, remedy.Of(err), "%v", err)
			continue
		}
		site, _, isHost := strings.Cut(w.Name, "/")
		switch host := sites[w.Name]; {
		case names[w.Name] > 0:
			d.errorf(e.key, fmt.Sprintf("remove one; the other is on line %d", names[w.Name]), "%s is there twice", w.Name)
		case host != nil:
			d.errorf(e.key, "give this host a name of the form "+w.Name+"/HOST", "%s is a site, with the host %s on line %d", w.Name, host.text, host.at.Line)
		case isHost && names[site] > 0:
			d.errorf(e.key, "give that one a name of the form "+site+"/HOST", "%s is one host on line %d, and no site with the host %s", site, names[site], w.Name)
		}
		if names[w.Name] == 0 {
			names[w.Name] = e.key.at.Line
		}
		if isHost && sites[site] == nil {
			sites[site] = e.key
		}
		for _, key := range w.Keys {
			if line := lines[key]; line > 0 {
				d.errorf(e.value, fmt.Sprintf("remove one; the other is on line %d", line), "the key %s is there twice", key.Short())
			}
			lines[key] = e.value.at.Line
		}
		peers = append(peers, w)
	}
	return peers
}

// peerKeys decodes one key, or the two of a host that rotates its key.
func (d *decoder) peerKeys(n *node) (keys []identity.PublicKey) {
	if n.kind == null {
		d.errorf(n, entryHint, "the key is missing")
		return nil
	}
	d.each(n, "the key", func(n *node, text string) {
		key, err := identity.ParsePublicKey(text)
		if err != nil {
			d.errorf(n, remedy.Of(err), "%v", err)
			return
		}
		keys = append(keys, key)
	})
	if len(keys) > identity.MaxKeys {
		d.errorf(n, "leave the newest ones, the newest first", "a host has %d keys, and at most %d during a rotation", len(keys), identity.MaxKeys)
	}
	return keys
}
