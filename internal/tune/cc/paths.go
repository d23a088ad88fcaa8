package cc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/display"
	"longhaul/internal/words/sorted"
	"longhaul/internal/words/units"
)

// ErrNoPaths: the algorithm is not loaded, or remembers no paths.
var ErrNoPaths = errors.New("it remembers no paths, or is not loaded")

// PathMemory is the time that haul remembers a path for: HAUL_CARRIED_US of bpf/haul.h.
const PathMemory = 10 * time.Minute

// Paths is what a loaded haul remembers of the paths to destinations. A new connection
// begins with it: Careful Resume, RFC 9959.
type Paths struct {
	paths, settings *ebpf.Map
}

// CarriedPath is what the path to a destination carried.
type CarriedPath struct {
	Destination netip.Addr    `json:"destination"`
	Mark        uint32        `json:"mark,omitempty"`   // of the sockets
	Device      int           `json:"device,omitempty"` // index of the device that the sockets are bound to
	RTT         units.Seconds `json:"rtt_seconds"`      // the least
	RateBps     float64       `json:"rate_bps"`         // of arrival, in bits of payload per second
	Floor       float64       `json:"floor"`            // share of packets that the path loses by itself
	Age         units.Seconds `json:"age_seconds"`      // since it last carried that rate
}

// Records of the maps, as in bpf/haul.bpf.c and bpf/haul.h.
type (
	pathKey struct {
		NetNS   [2]uint32
		Address [16]byte
		Mark    uint32
		Device  int32
	}
	// carriedRecord is the begin of a path's record.
	carriedRecord struct {
		BytesPerSecond uint64
		SeenUs         uint64 // of the monotonic clock
		RTTUs          uint32
		FloorQ16       uint32
	}
)

// Paths opens the memory of the algorithm loaded as name.
func (h *Host) Paths(name string) (*Paths, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	p := &Paths{}
	for pin, to := range map[string]**ebpf.Map{"paths": &p.paths, "settings": &p.settings} {
		m, err := ebpf.LoadPinnedMap(h.dir(name, pin), nil)
		if err != nil {
			p.Close()
			if errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s: %w", name, ErrNoPaths)
			}
			return nil, fmt.Errorf("open the paths of %s: %w", name, err)
		}
		*to = m
	}
	return p, nil
}

// Close closes the descriptors. The memory stays.
func (p *Paths) Close() {
	for _, m := range []*ebpf.Map{p.paths, p.settings} {
		if m != nil {
			m.Close()
		}
	}
}

// List returns the remembered paths of this network namespace, in order of destination.
func (p *Paths) List() ([]CarriedPath, error) {
	now, err := monotonic()
	if err != nil {
		return nil, err
	}
	var list []CarriedPath
	err = p.each(func(key pathKey, value []byte) error {
		var r carriedRecord
		if err := binary.Read(bytes.NewReader(value), binary.NativeEndian, &r); err != nil {
			return fmt.Errorf("read a path: %w", err)
		}
		age := max(now-time.Duration(r.SeenUs)*time.Microsecond, 0)
		if r.BytesPerSecond == 0 || age >= PathMemory {
			return nil
		}
		list = append(list, CarriedPath{
			Destination: netip.AddrFrom16(key.Address).Unmap(), Mark: key.Mark, Device: int(key.Device),
			RTT: units.Seconds(time.Duration(r.RTTUs) * time.Microsecond), RateBps: 8 * float64(r.BytesPerSecond),
			Floor: float64(r.FloorQ16) / (1 << 16), Age: units.Seconds(age),
		})
		return nil
	})
	sorted.By(list, func(a, b CarriedPath) int {
		return cmp.Or(a.Destination.Compare(b.Destination), cmp.Compare(a.Mark, b.Mark), cmp.Compare(a.Device, b.Device))
	})
	return list, err
}

// Forget removes the paths of this network namespace to some prefixes, to all without
// one, and returns their number. Present connections keep their state.
func (p *Paths) Forget(prefixes ...netip.Prefix) (n int, err error) {
	var keys []pathKey
	err = p.each(func(key pathKey, _ []byte) error {
		to := netip.AddrFrom16(key.Address).Unmap()
		if len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(to) }) {
			keys = append(keys, key)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		switch err := p.paths.Delete(key); {
		case err == nil:
			n++
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			return n, fmt.Errorf("forget the path to %s: %w", netip.AddrFrom16(key.Address).Unmap(), err)
		}
	}
	return n, nil
}

// each calls f for the paths of this network namespace.
func (p *Paths) each(f func(pathKey, []byte) error) error {
	cookie, err := kernel.NetNSCookie()
	if err != nil {
		return err
	}
	own := [2]uint32{uint32(cookie >> 32), uint32(cookie)}
	var (
		key   pathKey
		value []byte
	)
	entries := p.paths.Iterate()
	for entries.Next(&key, &value) {
		if key.NetNS != own {
			continue
		}
		if err := f(key, value); err != nil {
			return err
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("list the paths: %w", err)
	}
	return nil
}

// Resumes reports whether new connections begin with what the path carried.
func (p *Paths) Resumes() (bool, error) {
	var cold uint32
	if err := p.settings.Lookup(uint32(0), &cold); err != nil {
		return false, fmt.Errorf("read the settings of the algorithm: %w", err)
	}
	return cold == 0, nil
}

// SetResumes sets whether new connections, of all network namespaces, begin with what the
// path carried. It holds until the algorithm is unloaded.
func (p *Paths) SetResumes(resumes bool) error {
	cold := uint32(1)
	if resumes {
		cold = 0
	}
	if err := p.settings.Put(uint32(0), cold); err != nil {
		return fmt.Errorf("change the settings of the algorithm: %w", err)
	}
	return nil
}

// monotonic returns the time of the clock that the kernel's TCP uses.
func monotonic() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// WritePaths writes paths as a table that fits a terminal of 80 columns.
func WritePaths(w io.Writer, paths []CarriedPath) {
	const row = "%-38s  %9s  %10s  %7s  %6s"
	fmt.Fprintf(w, row+"\n", "TO", "RTT", "RATE", "LOSS", "AGE")
	for _, p := range paths {
		fmt.Fprintf(w, row+"\n", p.Destination, display.ShortTime(p.RTT.Duration()), display.Rate(p.RateBps),
			display.Share(p.Floor), display.Age(p.Age.Seconds()))
		var only []string
		if p.Mark != 0 {
			only = append(only, fmt.Sprintf("with mark %#x", p.Mark))
		}
		if p.Device != 0 {
			only = append(only, fmt.Sprintf("bound to device %d", p.Device))
		}
		if len(only) > 0 {
			fmt.Fprintf(w, "  sockets %s\n", strings.Join(only, ", "))
		}
	}
}
