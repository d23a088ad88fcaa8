package doctor

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// MarshalJSON gives the figures that are known, under their names in snake case
// and times in seconds.
func (f Figures) MarshalJSON() ([]byte, error) {
	values := map[string]any{}
	v := reflect.ValueOf(f)
	for i := range v.NumField() {
		name, value := snakeCase(v.Type().Field(i).Name), v.Field(i).Interface()
		switch value := value.(type) {
		case float64:
			if math.IsNaN(value) || math.IsInf(value, 0) {
				continue
			}
		case time.Duration:
			values[name+"_seconds"] = value.Seconds()
			continue
		}
		values[name] = value
	}
	return json.Marshal(values)
}

func snakeCase(s string) string {
	var b strings.Builder
	letters := []rune(s)
	for i, r := range letters {
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
