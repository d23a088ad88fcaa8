package postgres

import (
	"encoding/hex"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
	"longhaul/internal/watch/monitor/history"
)

// copyRows takes rows as text: PostgreSQL's time goes into indexes, and binary rows are no smaller.
var copyRows = "COPY longhaul.flows (" + columnNames() + ", goodput) FROM STDIN"

func columnNames() string {
	var names []string
	for _, c := range archive.Columns() {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// rowReader is rows as COPY takes them: a line each, values with tabs between.
type rowReader struct {
	rows []*archive.Row
	line []byte // what is left of the last one
	b    []byte
}

func (r *rowReader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(r.line) == 0 {
			if len(r.rows) == 0 {
				break
			}
			r.b = appendRow(r.b[:0], r.rows[0])
			r.line, r.rows = r.b, r.rows[1:]
		}
		took := copy(p[n:], r.line)
		r.line = r.line[took:]
		n += took
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func appendRow(b []byte, r *archive.Row) []byte {
	for _, c := range archive.Columns() {
		b = append(appendValue(b, c.Value(r)), '\t')
	}
	if series := history.EncodeSeries(r.Goodput); series != nil {
		b = hex.AppendEncode(append(b, `\\x`...), series)
	} else {
		b = append(b, `\N`...)
	}
	return append(b, '\n')
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, `\N`...)
	case string:
		return appendText(b, clean(v))
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	case time.Time:
		return bounded(v).AppendFormat(b, "2006-01-02T15:04:05.000Z")
	case netip.Prefix:
		return v.AppendTo(b)
	case flow.Name:
		return hex.AppendEncode(b, v[:])
	}
	panic("postgres: a column with a value of another type")
}

// appendText writes a text of a row. COPY ends values at tabs, rows at newlines.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; c {
		case '\\':
			b = append(b, `\\`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, c)
		}
	}
	return b
}
