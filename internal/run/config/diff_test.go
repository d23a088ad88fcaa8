package config

import (
	"net/netip"
	"reflect"
	"testing"
)

// TestChangedSettings: every setting beside the tunnels counts as a change.
func TestChangedSettings(t *testing.T) {
	change := func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Uint32:
			v.SetUint(v.Uint() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.Slice:
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		case reflect.Bool:
			v.SetBool(!v.Bool())
		default:
			t.Fatalf("the test changes no %s", v.Kind())
		}
	}
	// leaves calls do for every setting below v.
	var leaves func(v reflect.Value, path string, do func(reflect.Value, string))
	leaves = func(v reflect.Value, path string, do func(reflect.Value, string)) {
		if v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[netip.AddrPort]() {
			do(v, path)
			return
		}
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "Tunnels" && name != "Files" && name != "Warnings" {
				leaves(v.Field(i), path+"."+name, do)
			}
		}
	}
	before, after := Default(), Default()
	if keys := ChangedSettings(&before, &after); keys != nil {
		t.Errorf("equal configurations differ in %v", keys)
	}
	n := 0
	leaves(reflect.ValueOf(&after).Elem(), "", func(v reflect.Value, path string) {
		n++
		was := reflect.ValueOf(v.Interface())
		change(v)
		if keys := ChangedSettings(&before, &after); len(keys) != 1 {
			t.Errorf("after a change of %s the changed settings are %v, want one", path, keys)
		}
		v.Set(was)
	})
	if n < 20 {
		t.Errorf("the test found %d settings", n)
	}
}
