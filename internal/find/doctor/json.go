package doctor

import (
	"encoding/json"
	"math"
	"reflect"
	"time"

	"longhaul/internal/sys/tcpinfo"
)

// MarshalJSON writes the known figures, with names in snake case and times in
// seconds.
func (f Figures) MarshalJSON() ([]byte, error) {
	values := map[string]any{}
	v := reflect.ValueOf(f)
	for i := range v.NumField() {
		name, value := tcpinfo.SnakeCase(v.Type().Field(i).Name), v.Field(i).Interface()
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
