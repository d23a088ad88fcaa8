package jsonrows

import (
	"bytes"
	"math"
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"

	"longhaul/internal/carry/flow"
	"longhaul/internal/watch/archive"
)

// Millisecond columns stand beside the times as text: Unix time for databases whose times have whole seconds.
const millisecondSuffix = "_ms"

// columns are those of the archive, each with its name as JSON has it.
var columns = func() []column {
	var all []column
	for _, c := range archive.Columns() {
		all = append(all, column{c, appendString(nil, c.Name), appendString(nil, c.Name+millisecondSuffix)})
	}
	return all
}()

type column struct {
	archive.Column
	key, millisecondKey []byte // quoted
}

// appendRow appends a row as one JSON object and a line end. What is nil is left out.
func appendRow(text []byte, row *archive.Row) []byte {
	text = append(text, '{')
	for i := range columns {
		c := &columns[i]
		switch v := c.Value(row).(type) {
		case string:
			text = appendString(appendKey(text, c.key), v)
		case int64:
			text = strconv.AppendInt(appendKey(text, c.key), v, 10)
		case float64:
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				text = appendKey(text, c.key)
				begin := len(text)
				text = strconv.AppendFloat(text, v, 'g', -1, 64)
				if !bytes.ContainsAny(text[begin:], ".e") {
					text = append(text, ".0"...) // who makes a field of the first value makes no integer
				}
			}
		case time.Time:
			if v.Year() >= 0 && v.Year() <= 9999 { // others have no form in RFC 3339
				text = append(appendKey(text, c.key), '"')
				text = append(v.AppendFormat(text, "2006-01-02T15:04:05.000Z07:00"), '"')
			}
			text = strconv.AppendInt(appendKey(text, c.millisecondKey), v.UnixMilli(), 10)
		case netip.Prefix:
			text = append(appendKey(text, c.key), '"')
			if v.IsSingleIP() {
				text = append(v.Addr().AppendTo(text), '"')
			} else {
				text = append(v.AppendTo(text), '"')
			}
		case flow.Name:
			text = append(append(appendKey(text, c.key), '"'), v.String()...)
			text = append(text, '"')
		}
	}
	return append(text, '}', '\n')
}

func appendKey(text, key []byte) []byte {
	if text[len(text)-1] != '{' {
		text = append(text, ',')
	}
	return append(append(text, key...), ':')
}

// appendString appends a JSON string (RFC 8259, section 7). U+FFFD stands for each byte that is not UTF-8.
func appendString(text []byte, s string) []byte {
	text = append(text, '"')
	plain := 0 // what is before it has been appended
	for i := 0; i < len(s); {
		b := s[i]
		if b >= ' ' && b < utf8.RuneSelf && b != '"' && b != '\\' {
			i++
			continue
		}
		if b >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				text = append(append(text, s[plain:i]...), string(utf8.RuneError)...)
				plain = i + 1
			}
			i += size
			continue
		}
		text = append(text, s[plain:i]...)
		if b == '"' || b == '\\' {
			text = append(text, '\\', b)
		} else {
			text = append(text, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
		}
		i++
		plain = i
	}
	return append(append(text, s[plain:]...), '"')
}

const hex = "0123456789abcdef"
