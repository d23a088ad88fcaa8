package tcpinfo

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// names holds the JSON names of the fields in the order of Field. They are the
// names in Info in snake case, with a unit suffix for times.
var names = func() (names [fieldCount]string) {
	info := reflect.TypeFor[Info]()
	for i := range names {
		f := info.Field(i)
		name := strings.Replace(SnakeCase(f.Name), "w_scale", "wscale", 1)
		if f.Type == reflect.TypeFor[time.Duration]() {
			name += "_us"
		}
		names[i] = name
	}
	return names
}()

// SnakeCase converts SndMSS to snd_mss: a capital letter begins a word unless
// it is within a run of capitals.
func SnakeCase(s string) string {
	var b strings.Builder
	runes := []rune(s)
	for i, r := range runes {
		beside := i > 0 && unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])
		if i > 0 && unicode.IsUpper(r) && beside {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// MarshalJSON encodes the known fields, times in whole microseconds.
func (i Info) MarshalJSON() ([]byte, error) {
	values := map[string]any{}
	v := reflect.ValueOf(i)
	for f := range fieldCount {
		if !i.Has(f) {
			continue
		}
		value := v.Field(int(f)).Interface()
		if d, ok := value.(time.Duration); ok {
			value = d.Microseconds()
		}
		values[names[f]] = value
	}
	return json.Marshal(values)
}

// UnmarshalJSON decodes the output of MarshalJSON. It ignores unknown names,
// which belong to a later version.
func (i *Info) UnmarshalJSON(b []byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	*i = Info{}
	v := reflect.ValueOf(i).Elem()
	for f := range fieldCount {
		raw, ok := values[names[f]]
		if !ok {
			continue
		}
		field := v.Field(int(f))
		if err := json.Unmarshal(raw, field.Addr().Interface()); err != nil {
			return fmt.Errorf("%s: %w", names[f], err)
		}
		if d, ok := field.Addr().Interface().(*time.Duration); ok {
			*d *= time.Microsecond
		}
		i.Know(f)
	}
	return nil
}

// Know marks fields as known, for an Info that does not come from a kernel.
func (i *Info) Know(fields ...Field) {
	for _, f := range fields {
		i.known |= 1 << f
	}
}
