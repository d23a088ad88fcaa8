package config

import (
	"slices"
	"strings"
)

// Difference is a key to which two configurations give different values, as their files write them. The
// files have no secret, but the names of files that have one.
type Difference struct {
	Tunnel string `json:"tunnel,omitempty"` // empty: a key of the process or of defaults
	Key    string `json:"key"`              // dotted, such as wan.rate
	Before string `json:"before,omitempty"` // empty: not set
	After  string `json:"after,omitempty"`  // likewise
	// Items is set for a list. Before and After are then the items that only one of them has.
	Items bool `json:"items,omitempty"`
}

// String is the difference in a line, without the tunnel.
func (d Difference) String() string {
	switch {
	case d.Items && d.After == "":
		return d.Key + ": without " + d.Before
	case d.Items && d.Before == "":
		return d.Key + ": with " + d.After
	case d.Items:
		return d.Key + ": without " + d.Before + ", with " + d.After
	case d.Before == "":
		return d.Key + ": not set -> " + d.After
	case d.After == "":
		return d.Key + ": " + d.Before + " -> not set"
	}
	return d.Key + ": " + d.Before + " -> " + d.After
}

// Differences compares the files of two configurations, with the flags of both: first the keys of the
// process, then those of each tunnel that both have. A changed tunnel without any has its change from
// defaults, or from an address of a name.
func Differences(before, after *Config, flags ...Flag) []Difference {
	oldTree, oldErr := parseFiles(before.Files)
	newTree, newErr := parseFiles(after.Files)
	if oldErr != nil || newErr != nil {
		return nil // flags alone, of which a reload changes none
	}
	oldTree.overlay(flags)
	newTree.overlay(flags)
	all := compare("", oldTree.root, newTree.root)
	old := map[string]*node{}
	for _, t := range tunnelsOf(oldTree.root) {
		old[t.lookup("name").text] = t
	}
	for _, t := range tunnelsOf(newTree.root) {
		if was := old[t.lookup("name").text]; was != nil {
			all = append(all, compare(t.lookup("name").text, was, t)...)
		}
	}
	return all
}

func tunnelsOf(root *node) []*node {
	n := root.lookup("tunnels")
	if n == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.items), func(t *node) bool { return t.lookup("name") == nil })
}

// compare lists the differences between two mappings in the order of their keys.
func compare(tunnel string, before, after *node) (all []Difference) {
	old, now := leaves{}, leaves{}
	old.add("", before)
	now.add("", after)
	for _, key := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(old.keys, now.keys)))) {
		d := Difference{Tunnel: tunnel, Key: key, Before: text(old.values[key]), After: text(now.values[key])}
		if d.Before == d.After {
			continue
		}
		a, b := items(old.values[key]), items(now.values[key])
		if lost, won := without(a, b), without(b, a); len(a)+len(b) > 2 && len(lost)+len(won) > 0 {
			d.Items, d.Before, d.After = true, strings.Join(lost, ", "), strings.Join(won, ", ")
		}
		all = append(all, d)
	}
	return all
}

// leaves are the values of a mapping and of those in it, by their dotted keys.
type leaves struct {
	keys   []string
	values map[string]*node
}

func (l *leaves) add(prefix string, n *node) {
	if l.values == nil {
		l.values = map[string]*node{}
	}
	for _, e := range n.entries {
		key := prefix + e.key.text
		switch {
		case prefix == "" && e.key.text == "tunnels": // compared one by one
		case e.value.kind == mapping:
			l.add(key+".", e.value)
		case l.values[key] == nil:
			l.keys = append(l.keys, key)
			l.values[key] = e.value
		}
	}
}

// text is a value in one line; empty for a value that is not set.
func text(n *node) string {
	switch {
	case n == nil || n.kind == null:
		return ""
	case n.kind == scalar:
		return oneLine(n.text)
	case n.kind == mapping:
		var all []string
		for _, e := range n.entries {
			all = append(all, oneLine(e.key.text)+": "+text(e.value))
		}
		return "{" + strings.Join(all, ", ") + "}"
	case len(n.items) == 1:
		return text(n.items[0]) // a list of one is written either way
	}
	return "[" + strings.Join(items(n), ", ") + "]"
}

func items(n *node) (all []string) {
	switch {
	case n == nil || n.kind == null:
	case n.kind == list:
		for _, item := range n.items {
			all = append(all, text(item))
		}
	default:
		all = []string{text(n)}
	}
	return all
}

// without lists the items that others have not.
func without(items, others []string) (all []string) {
	known := map[string]bool{}
	for _, o := range others {
		known[o] = true
	}
	for _, i := range items {
		if !known[i] {
			all = append(all, i)
		}
	}
	return all
}
