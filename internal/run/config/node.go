package config

// node is an untyped value from a file or a flag.
type node struct {
	kind    kind
	text    string // of a scalar
	quoted  bool   // a scalar written as a string
	items   []*node
	entries []entry
	at      Position
}

type entry struct{ key, value *node }

type kind uint8

const (
	null kind = iota
	scalar
	list
	mapping
)

func (k kind) String() string {
	return [...]string{"nothing", "a single value", "a list", "a mapping"}[k]
}

// lookup returns the value of a key of a mapping; nil if it is missing.
func (n *node) lookup(key string) *node {
	if n == nil || n.kind != mapping {
		return nil
	}
	for _, e := range n.entries {
		if e.key.text == key {
			return e.value
		}
	}
	return nil
}

// overlay replaces values of n by those of over, mapping by mapping.
func (n *node) overlay(over *node) {
	for _, e := range over.entries {
		old := n.lookup(e.key.text)
		switch {
		case old == nil:
			n.entries = append(n.entries, e)
		case old.kind == mapping && e.value.kind == mapping:
			old.overlay(e.value)
		default:
			*old = *e.value
		}
	}
}
