package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"longhaul/internal/carry/pair/identity"
	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/run/config"
	"longhaul/test/nettest"
)

// trusting are pairs that trust these peers by certificates, whose files cannot be read.
func trusting(t *testing.T, dir string, names ...trust.Name) *pairs {
	t.Helper()
	same := func(path string) string { return path }
	p := newPairs(slog.New(slog.DiscardHandler), "test", func() string { return dir }, same, nil)
	keys := trust.New(identity.New(dir))
	if len(names) > 0 {
		keys.Use((&trust.Trust{}).With(names))
	}
	p.keys.Store(keys)
	return p
}

// TestListsOfRelaysWithTheSameKeys: a relay beside another one with the same keys, and its end, leave the peers
// of the other one's process before, which follows its own relay's list alone.
func TestListsOfRelaysWithTheSameKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pair")
	b := trust.Name{SAN: "spiffe://x/b", Peer: "site-b"}
	c := trust.Name{SAN: "spiffe://x/c", Peer: "site-c"}
	old := trusting(t, dir, b, c)
	old.list, old.drained, old.succeeded = "/run/a.sock", true, true
	watch := &trustWatch{pairs: old}
	now := time.Now()
	follows := func(what string, want int) {
		t.Helper()
		now = now.Add(time.Minute)
		watch.look(now)
		if got := len(old.keys.Load().Trust().Options().Names); got != want {
			t.Errorf("%s: %d peers are trusted, want %d", what, got, want)
		}
	}
	write := func(all ...identity.Trusted) {
		t.Helper()
		nettest.Must(t, identity.New(dir).SetTrusted("/run/a.sock", all))
	}
	asB, asC := identity.Trusted{Name: b.Peer, SAN: b.SAN}, identity.Trusted{Name: c.Peer, SAN: c.SAN}
	write(asB, asC)
	follows("the successor has both", 2)

	trial := trusting(t, dir)
	trial.list = "/run/trial.sock"
	(&trustWatch{pairs: trial}).look(now)
	follows("another relay without pair_trust", 2)
	nettest.Must(t, identity.New(dir).SetTrusted("/run/trial.sock", []identity.Trusted{asC}))
	trial.close()
	follows("another relay has ended", 2)
	if l, err := identity.New(dir).Trusted("/run/trial.sock"); err != nil || len(l) > 0 {
		t.Errorf("a relay that has ended leaves %v, %v", l, err)
	}
	idle := newPairs(slog.New(slog.DiscardHandler), "test", func() string { return dir }, nil, nil)
	idle.begin("/run/idle.sock", &config.Config{})
	follows("another relay without pairs", 2)

	for _, mode := range []os.FileMode{0o777, 0o700} { // as unusable as a directory that cannot be opened
		nettest.Must(t, os.Chmod(dir, mode))
		follows("the directory cannot be used for a while", 2)
	}
	var limit syscall.Rlimit
	nettest.Must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	nettest.Must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	follows("no descriptor is left", 2)
	nettest.Must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))

	write(asB)
	follows("the successor has one", 1)
	old.close()
	if l, err := identity.New(dir).Trusted("/run/a.sock"); err != nil || len(l) != 1 {
		t.Errorf("the end of a process before leaves %v, %v", l, err)
	}
	idle.begin("/run/a.sock", &config.Config{})
	if _, err := os.Stat(filepath.Join(dir, "trusted")); err == nil {
		t.Error("a relay that has no pairs any more keeps its list")
	}
}

// TestHopsChangeWithoutCertificates: new hops of a service need no files of certificates, and leave the trust.
func TestHopsChangeWithoutCertificates(t *testing.T) {
	c := &config.Config{}
	c.PairTrust.CA = filepath.Join(t.TempDir(), "missing")
	paired := trusting(t, t.TempDir(), trust.Name{SAN: "spiffe://x/b", Peer: "site-b"})
	without := trusting(t, t.TempDir())
	without.keys.Store(nil)
	for name, p := range map[string]*pairs{"with keys": paired, "no paired tunnel": without} {
		if _, err := p.Prepare(t.Context(), &plan{Config: c}); err == nil {
			t.Errorf("%s: a reload takes a file that is missing", name)
		}
		change, err := p.Prepare(t.Context(), &plan{Config: c, onlyHops: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		now := func() *trust.Trust {
			if keys := p.keys.Load(); keys != nil {
				return keys.Trust()
			}
			return nil
		}
		was := now()
		change.Commit()
		if now() != was {
			t.Errorf("%s: the trust is another one", name)
		}
	}
}

func TestListName(t *testing.T) {
	for _, c := range []struct{ socket, file, want string }{
		{"/run/longhaul/a.sock", "/etc/a.yaml", "/run/longhaul/a.sock"},
		{"/run/longhaul/longhaul-7.sock", "/etc/a.yaml", "/etc/a.yaml"},
		{"/run/longhaul/longhaul-7.sock", "", "/run/longhaul/longhaul-7.sock"},
		{"", "/etc/a.yaml", "/etc/a.yaml"},
	} {
		if got := listName(c.socket, c.file); got != c.want {
			t.Errorf("%s with %s: %s, want %s", c.socket, c.file, got, c.want)
		}
	}
}
