package hostchanges

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/test/nettest"
)

// otherNamespace is a network namespace of a thread, until end.
type otherNamespace struct{ run chan func() }

func newNamespace(t *testing.T) otherNamespace {
	t.Helper()
	n := otherNamespace{make(chan func())}
	ready := make(chan error)
	go onOwnThread(func() {
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range n.run {
			f()
		}
	})
	must(t, <-ready)
	return n
}

func (n otherNamespace) do(f func() error) error {
	done := make(chan error)
	n.run <- func() { done <- f() }
	return <-done
}

func (n otherNamespace) end() { close(n.run) }

// TestNamespaces: an algorithm stays while another namespace uses it, undo reaches that
// namespace, and forgets it when it is deleted.
func TestNamespaces(t *testing.T) {
	l := newLab(t)
	ctx := context.Background()
	alice, bob := l.host("alice", ledger.Command), l.host("bob", ledger.Command)
	name := l.algorithms[0]
	far := newNamespace(t)
	var before string
	must(t, far.do(func() (err error) {
		if before, err = cc.ReadDefault(); err != nil {
			return err
		}
		if _, err = alice.Destinations.CC.Load(ctx, name, name); err != nil {
			return err
		}
		return alice.Destinations.CC.SetDefault(ctx, name)
	}))
	_, err := bob.Destinations.CC.Load(ctx, name, name)
	must(t, err)

	changes, err := bob.List(Selection{Choose: ledger.AllClaims, Everywhere: true})
	must(t, err)
	if len(changes) != 2 || changes[0].Kind != ledger.Algorithm || changes[1].NetNS == "" || changes[1].Deleted ||
		!slices.Contains(changes[0].UsedBy, "default (alice)") {
		t.Errorf("changes: %+v", changes)
	}
	if here, err := bob.List(Selection{Choose: ledger.AllClaims}); err != nil || len(here) != 1 {
		t.Errorf("changes here: %+v, %v", here, err)
	}

	outcome, err := bob.Undo(ctx, Selection{Choose: ledger.OwnClaims("bob"), Everywhere: true})
	must(t, err)
	var out strings.Builder
	must(t, outcome.WriteText(&out))
	if !strings.Contains(out.String(), "stays loaded: alice has loaded it, alice uses it as a default") || !cc.IsAvailable(name) {
		t.Errorf("bob's undo:\n%s", out.String())
	}
	_, err = alice.Undo(ctx, Selection{Choose: ledger.OwnClaims("alice"), Everywhere: true})
	must(t, err)
	must(t, far.do(func() error {
		if now, err := cc.ReadDefault(); err != nil || now != before {
			t.Errorf("the default there is %s, %v, want %s", now, err, before)
		}
		return nil
	}))
	if cc.IsAvailable(name) {
		t.Error("the algorithm is left")
	}

	// Without its namespace a default needs nothing.
	_, err = alice.Destinations.CC.Load(ctx, name, name)
	must(t, err)
	must(t, far.do(func() error { return alice.Destinations.CC.SetDefault(ctx, name) }))
	far.end()
	nettest.Eventually(t, time.Minute, func() bool {
		changes, err = alice.List(Selection{Choose: ledger.AllClaims, Everywhere: true})
		return err == nil && len(changes) == 2 && changes[1].Deleted
	}, func() string { return "the namespace is still there: " + strings.Join(whats(changes), ", ") })
	outcome, err = alice.Undo(ctx, Selection{Choose: ledger.OwnClaims("alice")})
	must(t, err)
	if !slices.Equal(outcome.Forgotten, []string{"default"}) || cc.IsAvailable(name) {
		t.Errorf("%+v", outcome)
	}
	if _, err := os.Stat(l.ledger); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ledger is left: %v", err)
	}
}

func whats(changes []Change) (all []string) {
	for _, c := range changes {
		all = append(all, c.What+" "+c.NetNS)
	}
	return all
}

// TestDryRun: a dry run says what the undo then says, and changes nothing.
func TestDryRun(t *testing.T) {
	l := newLab(t)
	ctx := context.Background()
	name := l.algorithms[0]
	before := l.dump(t)
	h := l.host("alice", ledger.Command)
	dry := l.host("alice", ledger.Command)
	dry.DryRun()
	prefixes := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.51.100.0/24")}
	would, err := dry.Destinations.Use(ctx, prefixes, name, 0)
	must(t, err)
	if !slices.Equal(before, l.dump(t)) {
		t.Error("the dry run of use changed the host")
	}
	used, err := h.Destinations.Use(ctx, prefixes, name, 0)
	must(t, err)
	for i := range used {
		var a, b strings.Builder
		must(t, errors.Join(would[i].WriteText(&a), used[i].WriteText(&b)))
		if a.String() != b.String() || !slices.Equal(would[i].Notes, used[i].Notes) {
			t.Errorf("would: %s, did: %s", a.String(), b.String())
		}
	}
	between := l.dump(t)
	everything := Selection{Choose: ledger.AllClaims, Everywhere: true}
	said, err := dry.Undo(ctx, everything)
	must(t, err)
	if !slices.Equal(between, l.dump(t)) {
		t.Error("the dry run of undo changed the host")
	}
	done, err := h.Undo(ctx, everything)
	must(t, err)
	var a, b strings.Builder
	must(t, errors.Join(said.WriteText(&a), done.WriteText(&b)))
	if a.String() != b.String() || strings.Count(a.String(), "\n") != 3 {
		t.Errorf("would:\n%s\ndid:\n%s", a.String(), b.String())
	}
	if !slices.Equal(before, l.dump(t)) {
		t.Error("the host is not as before")
	}
}

// TestUnrecorded: without the ledger the owner of an algorithm is unknown: only an undo of
// everybody's claims unloads it.
func TestUnrecorded(t *testing.T) {
	l := newLab(t)
	ctx := context.Background()
	name := l.algorithms[0]
	_, err := l.host("alice", ledger.Command).Destinations.CC.Load(ctx, name, name)
	must(t, err)
	must(t, os.RemoveAll(l.ledger))
	bob := l.host("bob", ledger.Command)
	_, err = bob.Destinations.Use(ctx, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, name, 0)
	must(t, err)
	isRoute := func(k ledger.Key, _ ledger.Claim) bool { return k.Kind == ledger.Route }
	_, err = bob.Undo(ctx, Selection{Choose: isRoute})
	must(t, err)
	if !cc.IsAvailable(name) {
		t.Error("the undo of a use unloaded it")
	}
	_, err = bob.Undo(ctx, Selection{Choose: ledger.OwnClaims("bob")})
	must(t, err)
	if !cc.IsAvailable(name) {
		t.Error("bob unloaded what may be of a lab, unasked")
	}
	_, err = bob.Undo(ctx, Selection{Choose: ledger.AllClaims})
	must(t, err)
	if cc.IsAvailable(name) {
		t.Error("bob could not unload it")
	}
}
