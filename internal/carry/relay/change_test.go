package relay

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"longhaul/internal/carry/relay/hops"
	"longhaul/test/nettest"
)

// A change that is prepared shows nothing but a bound address until it is
// committed, and leaves nothing when it is aborted.
func TestChangeIsCommittedOrAborted(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	added := nobody(t)
	tunnels := []Tunnel{
		{Name: "t", Listen: []netip.AddrPort{g.addr}, Forward: []hops.Target{targetOf(g.target)}},
		{Name: "added", Listen: []netip.AddrPort{added}, Forward: []hops.Target{targetOf(g.target)}},
	}
	prepare := func() *Change {
		t.Helper()
		c, err := g.relay.Prepare(tunnels)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	is := func(n int) {
		t.Helper()
		if got := len(g.relay.Snapshot().Tunnels); got != n {
			t.Fatalf("%d tunnels, want %d", got, n)
		}
	}

	c := prepare()
	is(1)
	waiting := dial(t, added)
	g.pair() // goes on
	if _, err := g.relay.Prepare(tunnels); err == nil {
		t.Error("two changes are prepared at the same time")
	}
	c.Abort()
	is(1)
	if _, err := waiting.Read(make([]byte, 1)); err == nil {
		t.Error("a client of a change that was aborted stays connected")
	}
	if c, err := tryDial(added); err == nil {
		c.Close()
		t.Error("the address of a change that was aborted is still bound")
	}
	if err := c.Commit(); !errors.Is(err, ErrClosed) {
		t.Errorf("an aborted change is committed: %v", err)
	}

	c = prepare()
	waiting = dial(t, added)
	if err := c.Commit(); err != nil {
		t.Fatal(err)
	}
	c.Abort() // too late
	is(2)
	s := g.accept()
	write(t, waiting, []byte("x"))
	expect(t, s, []byte("x"))
	waiting.Close()
	s.Close()

	// What ends the relay ends the change before it.
	tunnels = tunnels[:1]
	tunnels[0].Listen = []netip.AddrPort{g.addr, nobody(t)}
	c = prepare()
	g.relay.Close()
	if err := c.Commit(); !errors.Is(err, ErrClosed) {
		t.Errorf("a change of a closed relay is committed: %v", err)
	}
}

// An aborted change gives a listener of another process back to the next one.
func TestAbortKeepsHandedOverListeners(t *testing.T) {
	nettest.CheckLeaks(t)
	g := fixed(t)
	handed, err := g.relay.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	tunnels := []Tunnel{{Name: "t", Listen: []netip.AddrPort{g.addr}, Forward: []hops.Target{targetOf(g.target)}}}
	next := New(Options{Workers: 1, Listeners: handed})
	defer next.Close()
	for range 2 {
		c, err := next.Prepare(tunnels)
		if err != nil {
			t.Fatal(err)
		}
		c.Abort()
	}
	if err := setTunnels(next, tunnels); err != nil {
		t.Fatal(err)
	}
	for _, l := range handed {
		l.File.Close()
	}
}

// A reload sees a change of any field of a tunnel, also of one that is added later.
func TestTunnelsThatDiffer(t *testing.T) {
	for _, field := range fieldsOf(reflect.TypeFor[Tunnel](), nil) {
		at := reflect.TypeFor[Tunnel]().FieldByIndex(field)
		t.Run(at.Name, func(t *testing.T) {
			one, other := new(Tunnel), new(Tunnel)
			alter(t, reflect.ValueOf(other).Elem().FieldByIndex(field))
			if want := at.Name == "Inherited"; one.Equal(other) != want || other.Equal(one) != want {
				t.Errorf("with another %s it is equal: %v, want %v", at.Name, !want, want)
			}
			if !other.Equal(other) {
				t.Errorf("with another %s it differs from itself", at.Name)
			}
		})
	}
}

// fieldsOf are the fields of a struct, and of structs within it.
func fieldsOf(t reflect.Type, of []int) (all [][]int) {
	for i := range t.NumField() {
		at := append(slices.Clone(of), i)
		if f := t.Field(i).Type; f.Kind() == reflect.Struct {
			all = append(all, fieldsOf(f, at)...)
		} else {
			all = append(all, at)
		}
	}
	return all
}

// alter gives a field another value than zero.
func alter(t *testing.T, field reflect.Value) {
	switch {
	case field.Kind() == reflect.Bool:
		field.SetBool(true)
	case field.CanInt():
		field.SetInt(1)
	case field.CanUint():
		field.SetUint(1)
	case field.CanFloat():
		field.SetFloat(1)
	case field.Kind() == reflect.String:
		field.SetString("another")
	case field.Kind() == reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), 1, 1))
	default:
		for _, one := range []any{hops.ConnectProbe{}, namedSides{}, newIntegrityServer(), &carrier{}, &farServer{}} {
			if reflect.TypeOf(one).Implements(field.Type()) {
				field.Set(reflect.ValueOf(one))
				return
			}
		}
		t.Fatalf("alter cannot set a %v", field.Type())
	}
}
