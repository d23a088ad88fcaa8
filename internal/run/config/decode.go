package config

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"longhaul/internal/words/ipprefix"
	"longhaul/internal/words/remedy"
	"longhaul/internal/words/units"
)

// decoder converts nodes to typed settings and collects every mistake.
type decoder struct {
	ctx    context.Context
	loader Loader
	errs   Errors
	files  Files // that are decoded

	warnings []*Error
	badTrust bool // pair_trust has a mistake, so it is unknown whom it names
	onHost   bool // warn of what this host lacks

	// keys holds the known keys of every kind of mapping decoded so far.
	keys map[string][]string

	listens      []placedListen
	forwardNodes [][]*node               // of the hops of each tunnel
	services     []*node                 // likewise, the whole of forward
	intercepts   []*node                 // of each tunnel
	names        map[string][]netip.Addr // of listening addresses
}

func (d *decoder) errorf(n *node, fix, format string, args ...any) {
	d.errs = append(d.errs, &Error{n.at, oneLine(fmt.Sprintf(format, args...)), oneLine(fix)})
}

func (d *decoder) mistake(n *node, m *mistake) {
	d.errs = append(d.errs, &Error{n.at, oneLine(m.problem), oneLine(m.fix)})
}

// oneLine escapes line breaks and other control characters that a message
// copies from the file.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// field is a key of a mapping with the decoder of its value.
type field struct {
	key    string
	decode func(*node)
}

// placeOf are the mappings of keys that are looked for elsewhere.
var placeOf = map[string]string{"local_targets": "original, or in intercept of a tunnel without forward"}

// removedIn is the section of CHANGELOG.md that has the removed keys: the release, once there is one.
const removedIn = "Unreleased"

// removed are the keys that longhaul has had, and what to do without each, by its value. The empty value
// stands for all others.
var removed = map[string]map[string]string{
	"fallback": {
		"never": "remove it; pairs work like this now",
		"": "remove it; without a paired relay at the far end, remove pair. " +
			"What lets flows pass unencrypted while a pair is down is intercept with when_down: bypass",
	},
	"overflow": {
		"false": "remove it; paths work like this now",
		"":      "remove it: paths without standby share the flows; or write standby: true",
	},
}

// removedFix is what to do without a removed key.
func removedFix(key string, value *node) string {
	fixes := removed[key]
	return cmp.Or(fixes[value.text], fixes[""])
}

// wasRemoved is the mistake of using what longhaul has had.
func (d *decoder) wasRemoved(n *node, what, fix string) {
	d.errorf(n, fix, "%s was removed, see CHANGELOG.md (%s)", what, removedIn)
}

// mapping decodes a mapping strictly: unknown and repeated keys are mistakes.
func (d *decoder) mapping(n *node, what string, fields ...field) {
	known := make([]string, len(fields))
	for i, f := range fields {
		known[i] = f.key
	}
	d.keys[what] = known
	if n.kind != mapping {
		d.errorf(n, "write one of its keys below it: "+strings.Join(known, ", "), "%s must be a mapping, not %s", what, n.kind)
		return
	}
	seen := map[string]Position{}
	for _, e := range n.entries {
		key := e.key.text
		if at, again := seen[key]; again {
			d.errorf(e.key, "remove one; the other is "+at.seenFrom(e.key.at), "%s is set twice", key)
			continue
		}
		seen[key] = e.key.at
		i := slices.Index(known, key)
		switch {
		case i < 0 && removed[key] != nil:
			d.wasRemoved(e.key, key, removedFix(key, e.value))
		case i < 0:
			fix := "known keys: " + strings.Join(known, ", ")
			if meant := remedy.Nearest(key, known); meant != "" {
				fix = "did you mean " + meant + "?"
			}
			if place := placeOf[key]; place != "" {
				fix = "write it in " + place
			}
			d.errorf(e.key, fix, "unknown key %s in %s", key, what)
		case e.value.kind == null:
			d.errorf(e.key, "give it one, or remove the line", "%s has no value", key)
		default:
			fields[i].decode(e.value)
		}
	}
}

// into makes a field that stores the value decoded by read.
func into[T any](key string, to *T, read func(*node, string) (T, bool)) field {
	return field{key, func(n *node) {
		if v, ok := read(n, key); ok {
			*to = v
		}
	}}
}

// text returns a single value as written.
func (d *decoder) text(n *node, key string) (string, bool) {
	if n.kind != scalar {
		fix := "write one value after the colon"
		if n.at.Flag != "" {
			fix = "give the flag once"
		}
		d.errorf(n, fix, "%s must be a single value, not %s", key, n.kind)
		return "", false
	}
	return n.text, true
}

// oneOf decodes one of a set of words.
func oneOf[T ~string](d *decoder, words ...T) func(*node, string) (T, bool) {
	return func(n *node, key string) (T, bool) {
		s, ok := d.text(n, key)
		if !ok {
			return "", false
		}
		if i := slices.Index(words, T(s)); i >= 0 {
			return words[i], true
		}
		var all []string
		for _, w := range words {
			all = append(all, string(w))
		}
		d.errorf(n, "use one of "+strings.Join(all, ", "), "%s cannot be %q", key, s)
		return "", false
	}
}

// integer decodes a whole number within bounds.
func (d *decoder) integer(low, high int) func(*node, string) (int, bool) {
	hint := fmt.Sprintf("use a number from %d to %d", low, high)
	return func(n *node, key string) (int, bool) {
		s, ok := d.text(n, key)
		if !ok {
			return 0, false
		}
		v, err := strconv.ParseInt(s, 10, 64)
		switch {
		case err != nil && strings.Trim(s, "0123456789") != "":
			d.errorf(n, hint, "%s must be a whole number, not %q", key, s)
		case n.quoted:
			d.errorf(n, "remove the quotes", "%s must be a number, not text", key)
		case err != nil || v < int64(low) || v > int64(high):
			d.errorf(n, hint, "%s cannot be %s", key, s)
		default:
			return int(v), true
		}
		return 0, false
	}
}

// boolean decodes true or false.
func (d *decoder) boolean(n *node, key string) (bool, bool) {
	text, ok := d.text(n, key)
	if !ok {
		return false, false
	}
	switch {
	case text != "true" && text != "false":
		d.errorf(n, "use true or false", "%s cannot be %q", key, text)
	case n.quoted:
		d.errorf(n, "remove the quotes", "%s must be true or false, not text", key)
	default:
		return text == "true", true
	}
	return false, false
}

// duration decodes a duration within bounds. If off is not nil, the word "off"
// means *off. A file's durations have a unit; a flag's bare number is seconds.
func (d *decoder) duration(low, high time.Duration, off *time.Duration) func(*node, string) (time.Duration, bool) {
	return func(n *node, key string) (time.Duration, bool) {
		s, ok := d.text(n, key)
		if !ok {
			return 0, false
		}
		if off != nil && s == Off {
			return *off, true
		}
		orOff := ""
		if off != nil {
			orOff = ", or off"
		}
		v, err := units.ParseDuration(s)
		switch {
		case n.at.Flag == "" && strings.Trim(s, "0123456789.") == "" && s != "0":
			d.errorf(n, fmt.Sprintf("write %ss for seconds%s", s, orOff), "%s is %s without a unit", key, s)
		case err != nil:
			d.errorf(n, "write it like 500ms, 30s, 5m, 1h30m or 2d"+orOff, "%s cannot be %q", key, s)
		case v < low || v > high:
			d.errorf(n, fmt.Sprintf("use %s to %s%s", units.FormatDuration(low), units.FormatDuration(high), orOff), "%s cannot be %s", key, s)
		default:
			return v, true
		}
		return 0, false
	}
}

func (d *decoder) size(low, high units.Size) func(*node, string) (units.Size, bool) {
	return func(n *node, key string) (units.Size, bool) {
		s, ok := d.text(n, key)
		if !ok {
			return 0, false
		}
		v, err := units.ParseSize(s)
		switch {
		case err != nil:
			d.errorf(n, "write it like 512KiB, 16MiB or 1048576", "%s cannot be %q", key, s)
		case v < low || v > high:
			d.errorf(n, fmt.Sprintf("use %s to %s", low, high), "%s cannot be %s", key, s)
		default:
			return v, true
		}
		return 0, false
	}
}

func (d *decoder) rate(low, high units.Rate) func(*node, string) (units.Rate, bool) {
	return func(n *node, key string) (units.Rate, bool) {
		s, ok := d.text(n, key)
		if !ok {
			return 0, false
		}
		v, err := units.ParseRate(s)
		switch {
		case err == units.ErrByteRate:
			d.errorf(n, "write it in bits per second, such as 800Mbit for 100 megabytes", "%s cannot be %q", key, s)
		case err != nil:
			d.errorf(n, "write it in bits per second, like 64kbit, 100Mbit or 2.5Gbit", "%s cannot be %q", key, s)
		case v < low || v > high:
			d.errorf(n, fmt.Sprintf("use %s to %s", low, high), "%s cannot be %s", key, s)
		default:
			return v, true
		}
		return 0, false
	}
}

// each calls read for a single value, or for every value of a list.
func (d *decoder) each(n *node, key string, read func(n *node, text string)) {
	items := n.items
	switch n.kind {
	case scalar:
		items = []*node{n}
	case mapping:
		d.errorf(n, "write one value, or a list with a dash before each", "%s must be a value or a list, not %s", key, n.kind)
		return
	}
	if len(items) == 0 {
		d.errorf(n, "add one, or remove the line", "%s is an empty list", key)
	}
	for _, item := range items {
		if s, ok := d.text(item, key); ok {
			read(item, s)
		}
	}
}

// prefixes decodes a list of source addresses.
func (d *decoder) prefixes(n *node, key string) ([]netip.Prefix, bool) {
	before := len(d.errs)
	var all []netip.Prefix
	d.each(n, key, func(n *node, s string) {
		p, err := ipprefix.Parse(s)
		if err != nil {
			d.mistake(n, &mistake{err.Error(), remedy.Of(err)})
			return
		}
		all = append(all, p)
	})
	return all, len(d.errs) == before
}
