package intercept

import (
	"net/netip"
	"reflect"
	"testing"

	"longhaul/internal/words/portrange"
)

// Another value of any field is another interception.
func TestEqual(t *testing.T) {
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	full := func() Options {
		ports := []portrange.Range{{First: 1, Last: 2}}
		return Options{
			Tunnels: []Tunnel{{From: []netip.Prefix{prefix}, To: []netip.Prefix{prefix}, Ports: ports}},
			Dialers: []Dialer{{From: []netip.Prefix{prefix}, To: []netip.Prefix{prefix}, Ports: ports}},
		}
	}
	if !full().Equal(full()) {
		t.Error("two of the same are not equal")
	}
	parts := []func(o *Options) any{
		func(o *Options) any { return o },
		func(o *Options) any { return &o.Tunnels[0] },
		func(o *Options) any { return &o.Dialers[0] },
	}
	for _, part := range parts {
		o := full()
		for i := range reflect.ValueOf(part(&o)).Elem().NumField() {
			other := full()
			v := reflect.ValueOf(part(&other)).Elem()
			switch f := v.Field(i); f.Kind() {
			case reflect.String:
				f.SetString("other")
			case reflect.Bool:
				f.SetBool(true)
			case reflect.Uint16, reflect.Uint32:
				f.SetUint(1)
			case reflect.Slice:
				f.SetZero()
			default:
				t.Fatalf("%v has a %v", v.Type(), f.Kind())
			}
			if full().Equal(other) || other.Equal(full()) {
				t.Errorf("another %s of a %v changes nothing", v.Type().Field(i).Name, v.Type())
			}
		}
	}
}
