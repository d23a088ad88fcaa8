package cc

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/kernel"
)

// ErrNoRates: the algorithm is not loaded, or is not one that is told a rate.
var ErrNoRates = errors.New("it is told no rate, or is not loaded")

// Rate is what a group of connections may send together.
type Rate struct {
	BitsPerSecond int64  // of IP packets
	GainTenths    uint32 // window over rate × round trip, in tenths; 0 for the usual 20
}

// Bounds of a rate: a few packets per second, and what the arithmetic of
// bpf/brutal.h holds.
const (
	minRateBps = 64e3
	maxRateBps = 8 << 38
	minGain    = 5
	maxGain    = 80
)

func (r Rate) check() error {
	switch {
	case r.BitsPerSecond < minRateBps || r.BitsPerSecond > maxRateBps:
		return fmt.Errorf("a rate of %d bits per second cannot be held: choose 64 kbit/s to 2 Tbit/s", r.BitsPerSecond)
	case r.GainTenths != 0 && (r.GainTenths < minGain || r.GainTenths > maxGain):
		return fmt.Errorf("a gain of %d tenths cannot be held: choose 5 to 80", r.GainTenths)
	}
	return nil
}

// Rates tells a loaded brutal what to hold. A budget is a rate that several
// connections share: those to a prefix, or those that are put into it. The
// socket option of a connection's own goes before both.
type Rates struct {
	budgets, prefixes, sockets, accounts *ebpf.Map
}

// Records of the maps, as bpf/brutal.bpf.c has them.
type (
	budget struct {
		BytesPerSecond uint64
		GainTenths     uint32
		Owner          uint32 // the process it is to end with, 0 for none
	}
	prefixKey struct {
		Bits    uint32 // the namespace's 64 included
		NetNS   [2]uint32
		Address [16]byte
	}
	told struct {
		BytesPerSecond uint64
		GainTenths     uint32
		Budget         uint32
	}
)

// Rates opens the rates of what is loaded as name.
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

// Same reports whether both are the rates of one loaded algorithm, and not of
// one that was unloaded and its successor.
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

// Close closes the descriptors. What was told stays.
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

// NewBudget makes a rate that connections can be put into with [Rates.Join].
// It is there until [Rates.RemoveBudget], or until somebody needs the room
// after this process has ended.
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

// SetBudget changes a budget's rate, for its present connections as well.
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

// RemoveBudget takes a budget away. Connections in it fall back to what they
// would have without.
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

// Join puts a connection's socket into a budget. It may be done before or
// after the connection gets its congestion control.
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

// key is the map's key for a prefix in the calling thread's network namespace.
func key(prefix netip.Prefix) (prefixKey, error) {
	if !prefix.IsValid() || prefix.Addr().Is4In6() || prefix != prefix.Masked() {
		return prefixKey{}, fmt.Errorf("invalid prefix %s", prefix)
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

// prefix is what a key stands for.
func (k prefixKey) prefix() netip.Prefix {
	address, bits := netip.AddrFrom16(k.Address), int(k.Bits)-64
	if address.Is4In6() && bits >= 96 {
		return netip.PrefixFrom(address.Unmap(), bits-96)
	}
	return netip.PrefixFrom(address, bits)
}

// SetPrefix gives a rate to the connections of this network namespace to a
// prefix, all together. The longest prefix counts. It tells whether the prefix
// had none before.
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

// ClearPrefix takes a prefix's rate away, if it has one.
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

// Prefixes are the prefixes of this network namespace that were given a rate.
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
			continue // removed just now
		}
		all = append(all, PrefixRate{Prefix: k.prefix(), Rate: value.rate(), budget: id})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("list the rates of prefixes: %w", err)
	}
	return all, nil
}
