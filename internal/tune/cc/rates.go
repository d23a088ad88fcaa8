package cc

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/ipprefix"
)

// ErrNoRates: the algorithm is not loaded, or takes no rate.
var ErrNoRates = errors.New("it takes no rate, or is not loaded")

// Rate is the rate that a group of connections shares.
type Rate struct {
	BitsPerSecond int64  // of IP packets
	GainTenths    uint32 // window over rate × round trip, in tenths; 0 for the usual 20
}

// Bounds of a rate: a few packets per second, and the range of bpf/brutal.h's
// arithmetic.
const (
	minRateBps = 64e3
	maxRateBps = 8 << 38
	minGain    = 5
	maxGain    = 80
)

func (r Rate) check() error {
	switch {
	case r.BitsPerSecond < minRateBps || r.BitsPerSecond > maxRateBps:
		return fmt.Errorf("invalid rate of %d bits per second: choose 64 kbit/s to 2 Tbit/s", r.BitsPerSecond)
	case r.GainTenths != 0 && (r.GainTenths < minGain || r.GainTenths > maxGain):
		return fmt.Errorf("invalid gain of %d tenths: choose 5 to 80", r.GainTenths)
	}
	return nil
}

// Rates sets the rates of a loaded brutal. A budget is a rate that several connections
// share: those to a prefix, or those that join it. A connection's own socket option
// takes precedence.
type Rates struct {
	budgets, prefixes, sockets, accounts *ebpf.Map
}

// Records of the maps, as in bpf/brutal.bpf.c.
type (
	budget struct {
		BytesPerSecond uint64
		GainTenths     uint32
		Owner          uint32 // process whose end removes it, 0 for none
	}
	prefixKey struct {
		Bits    uint32 // including the namespace's 64
		NetNS   [2]uint32
		Address [16]byte
	}
	told struct {
		BytesPerSecond uint64
		GainTenths     uint32
		Budget         uint32
	}
)

// Rates opens the rates of the algorithm loaded as name.
func (h *Host) Rates(name string) (*Rates, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	r := &Rates{}
	for _, m := range []struct {
		name string
		to   **ebpf.Map
	}{{"budgets", &r.budgets}, {"prefixes", &r.prefixes}, {"sockets", &r.sockets}, {"accounts", &r.accounts}} {
		opened, err := ebpf.LoadPinnedMap(h.dir(name, m.name), nil)
		if err != nil {
			r.Close()
			if errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s: %w", name, ErrNoRates)
			}
			return nil, fmt.Errorf("open the rates of %s: %w", name, err)
		}
		*m.to = opened
	}
	return r, nil
}

// Same reports whether both are the rates of one loaded algorithm, without an unload
// between them.
func (r *Rates) Same(other *Rates) bool {
	a, errA := r.budgets.Info()
	b, errB := other.budgets.Info()
	if errA != nil || errB != nil {
		return false
	}
	idA, knownA := a.ID()
	idB, knownB := b.ID()
	return knownA && knownB && idA == idB
}

// Close closes the descriptors. The rates stay.
func (r *Rates) Close() {
	for _, m := range []*ebpf.Map{r.budgets, r.prefixes, r.sockets, r.accounts} {
		if m != nil {
			m.Close()
		}
	}
}

func (r Rate) budget(owner int) budget {
	return budget{BytesPerSecond: uint64(r.BitsPerSecond / 8), GainTenths: r.GainTenths, Owner: uint32(owner)}
}

func (b budget) rate() Rate {
	return Rate{BitsPerSecond: int64(b.BytesPerSecond) * 8, GainTenths: b.GainTenths}
}

// NewBudget adds a budget for connections that [Rates.Join] adds. It exists until
// [Rates.RemoveBudget], or until another process needs the room after this one has
// ended.
func (r *Rates) NewBudget(rate Rate) (id uint32, err error) {
	return r.newBudget(rate, os.Getpid())
}

func (r *Rates) newBudget(rate Rate, owner int) (uint32, error) {
	if err := rate.check(); err != nil {
		return 0, err
	}
	value := rate.budget(owner)
	for id, cleaned := uint32(1), false; ; id++ {
		err := r.budgets.Update(id, value, ebpf.UpdateNoExist)
		switch {
		case err == nil:
			return id, nil
		case errors.Is(err, ebpf.ErrKeyExist):
			continue
		case errors.Is(err, unix.E2BIG) && !cleaned:
			cleaned = true
			if err := r.removeOrphans(); err != nil {
				return 0, err
			}
			id = 0
			continue
		}
		return 0, fmt.Errorf("add a budget: %w", err)
	}
}

// SetBudget changes a budget's rate, also for its present connections.
func (r *Rates) SetBudget(id uint32, rate Rate) error {
	if err := rate.check(); err != nil {
		return err
	}
	var now budget
	if err := r.budgets.Lookup(id, &now); err != nil {
		return fmt.Errorf("budget %d: %w", id, err)
	}
	if err := r.budgets.Update(id, rate.budget(int(now.Owner)), ebpf.UpdateExist); err != nil {
		return fmt.Errorf("change budget %d: %w", id, err)
	}
	return nil
}

// RemoveBudget removes a budget. Its connections fall back to their rate without it.
func (r *Rates) RemoveBudget(id uint32) error {
	if err := r.budgets.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove budget %d: %w", id, err)
	}
	if err := r.accounts.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove budget %d: %w", id, err)
	}
	return nil
}

// removeOrphans removes budgets of processes that have ended.
func (r *Rates) removeOrphans() error {
	var (
		id      uint32
		value   budget
		orphans []uint32
	)
	for all := r.budgets.Iterate(); all.Next(&id, &value); {
		if value.Owner == 0 {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", value.Owner)); errors.Is(err, fs.ErrNotExist) {
			orphans = append(orphans, id)
		}
	}
	for _, id := range orphans {
		if err := r.RemoveBudget(id); err != nil {
			return err
		}
	}
	return nil
}

// Join adds a connection's socket to a budget, before or after the connection gets its
// congestion control.
func (r *Rates) Join(fd uintptr, id uint32) error {
	if err := r.sockets.Put(int32(fd), told{Budget: id}); err != nil {
		return fmt.Errorf("add a connection to budget %d: %w", id, err)
	}
	return nil
}

// PrefixRate is a budget of the connections to a prefix.
type PrefixRate struct {
	Prefix netip.Prefix
	Rate   Rate
	budget uint32
}

// key returns the map's key for a prefix in the calling thread's network namespace.
func key(prefix netip.Prefix) (prefixKey, error) {
	if !prefix.IsValid() {
		return prefixKey{}, errors.New("no prefix given")
	}
	if err := ipprefix.Check(prefix); err != nil {
		return prefixKey{}, err
	}
	cookie, err := kernel.NetNSCookie()
	if err != nil {
		return prefixKey{}, err
	}
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += 96
	}
	return prefixKey{Bits: uint32(64 + bits), NetNS: [2]uint32{uint32(cookie >> 32), uint32(cookie)}, Address: prefix.Addr().As16()}, nil
}

// prefix returns the prefix of a key.
func (k prefixKey) prefix() netip.Prefix {
	address, bits := netip.AddrFrom16(k.Address), int(k.Bits)-64
	if address.Is4In6() && bits >= 96 {
		return netip.PrefixFrom(address.Unmap(), bits-96)
	}
	return netip.PrefixFrom(address, bits)
}

// SetPrefix sets the rate that the connections of this network namespace to a prefix
// share. The longest prefix counts. It reports whether the prefix had no rate before.
func (r *Rates) SetPrefix(prefix netip.Prefix, rate Rate) (isNew bool, err error) {
	if err := rate.check(); err != nil {
		return false, err
	}
	k, err := key(prefix)
	if err != nil {
		return false, err
	}
	all, err := r.Prefixes()
	if err != nil {
		return false, err
	}
	for _, p := range all {
		if p.Prefix == prefix {
			return false, r.SetBudget(p.budget, rate)
		}
	}
	id, err := r.newBudget(rate, 0)
	if err != nil {
		return false, err
	}
	if err := r.prefixes.Put(k, id); err != nil {
		return false, errors.Join(fmt.Errorf("set the rate of %s: %w", prefix, err), r.RemoveBudget(id))
	}
	return true, nil
}

// ClearPrefix removes a prefix's rate, if any.
func (r *Rates) ClearPrefix(prefix netip.Prefix) error {
	k, err := key(prefix)
	if err != nil {
		return err
	}
	all, err := r.Prefixes()
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Prefix != prefix {
			continue
		}
		if err := r.prefixes.Delete(k); err != nil {
			return fmt.Errorf("remove the rate of %s: %w", prefix, err)
		}
		return r.RemoveBudget(p.budget)
	}
	return nil
}

// Prefixes returns the prefixes of this network namespace with a rate.
func (r *Rates) Prefixes() ([]PrefixRate, error) {
	own, err := key(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	if err != nil {
		return nil, err
	}
	var (
		all   []PrefixRate
		k     prefixKey
		id    uint32
		value budget
	)
	entries := r.prefixes.Iterate()
	for entries.Next(&k, &id) {
		if k.NetNS != own.NetNS {
			continue
		}
		if err := r.budgets.Lookup(id, &value); err != nil {
			continue // removed meanwhile
		}
		all = append(all, PrefixRate{Prefix: k.prefix(), Rate: value.rate(), budget: id})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("list the rates of prefixes: %w", err)
	}
	return all, nil
}
