package daemon

import (
	"reflect"
	"slices"
	"testing"

	"longhaul/internal/run/config"
)

// Each setting of a leg and of a health check changes what transport and hops get. One that its
// conversion forgets would be accepted and ignored.
func TestNoSettingIsIgnored(t *testing.T) {
	everyFieldCounts(t, legOptions)
	everyFieldCounts(t, health, "Blind") // follows from whose address the tunnel dials with
}

// everyFieldCounts holds that each field of a configuration, set alone, changes what convert makes
// of it, and that no field of the result stays zero when all are set, but for some that come from
// elsewhere.
func everyFieldCounts[C, O any](t *testing.T, convert func(C) O, elsewhere ...string) {
	t.Helper()
	var none, all C
	forEachField(reflect.ValueOf(&all).Elem(), nil, func(path []int) {
		var one C
		for _, c := range []*C{&one, &all} {
			setField(t, reflect.ValueOf(c).Elem().FieldByIndex(path))
		}
		if reflect.DeepEqual(convert(one), convert(none)) {
			t.Errorf("%T: %s changes nothing", none, reflect.TypeFor[C]().FieldByIndex(path).Name)
		}
	})
	result := reflect.ValueOf(convert(all))
	forEachField(result, nil, func(path []int) {
		name := result.Type().FieldByIndex(path).Name
		if result.FieldByIndex(path).IsZero() && !slices.Contains(elsewhere, name) {
			t.Errorf("%s of %T: no setting of %T leads there", name, result.Interface(), none)
		}
	})
}

// forEachField visits the fields of a struct, and those of its structs in their place.
func forEachField(v reflect.Value, above []int, visit func(path []int)) {
	for i := range v.NumField() {
		path := append(above[:len(above):len(above)], i)
		if v.Field(i).Kind() == reflect.Struct {
			forEachField(v.Field(i), path, visit)
			continue
		}
		visit(path)
	}
}

// setField gives a field a value that is not its default.
func setField(t *testing.T, v reflect.Value) {
	t.Helper()
	switch {
	case v.Type() == reflect.TypeFor[config.HealthCheck]():
		v.Set(reflect.ValueOf(config.HealthConnect))
	case v.Kind() == reflect.String:
		v.SetString("cubic")
	case v.CanInt():
		v.SetInt(1)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	default:
		t.Fatalf("no value for a %v: add one here", v.Type())
	}
}
