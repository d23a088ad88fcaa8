package postgres

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// numbers is an array of whole numbers as PostgreSQL reads it.
type numbers struct{ b []byte }

func (n *numbers) add(v int64) {
	n.b = strconv.AppendInt(append(n.b, ','), v, 10)
}

func (n *numbers) list() []byte { return array(n.b) }

// texts is an array of texts as PostgreSQL reads it.
type texts struct{ b []byte }

func (t *texts) add(s string) {
	t.b = append(t.b, ',', '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			t.b = append(t.b, '\\')
		}
		t.b = append(t.b, s[i])
	}
	t.b = append(t.b, '"')
}

func (t *texts) list() []byte { return array(t.b) }

// array takes values with a comma before each.
func array(values []byte) []byte {
	if len(values) > 0 {
		values = values[1:]
	}
	return append(append([]byte{'{'}, values...), '}')
}

// clean is a text that PostgreSQL takes: without NUL, and in UTF-8.
func clean(s string) string {
	for i := range len(s) {
		if s[i] == 0 || s[i] >= 0x80 {
			return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
		}
	}
	return s
}

// Times that PostgreSQL can tell from each other by the text of them. A clock may be anywhere.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// bounded is a time that PostgreSQL takes, in UTC.
func bounded(t time.Time) time.Time {
	if t = t.UTC(); t.Before(firstTime) {
		return firstTime
	}
	if t.After(lastTime) {
		return lastTime
	}
	return t
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// integers reads the numbers of an answer's row.
func integers(row [][]byte) ([]int64, error) {
	all := make([]int64, len(row))
	for i, text := range row {
		v, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the database answers %q instead of a number", text)
		}
		all[i] = v
	}
	return all, nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
