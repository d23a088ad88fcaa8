package cc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/words/units"
)

// putPath writes a path as the programs do.
func putPath(t *testing.T, p *Paths, key pathKey, r carriedRecord) {
	t.Helper()
	var b bytes.Buffer
	must(t, binary.Write(&b, binary.NativeEndian, r))
	value := make([]byte, p.paths.ValueSize())
	copy(value, b.Bytes())
	must(t, p.paths.Put(key, value))
}

func TestPaths(t *testing.T) {
	t.Parallel()
	h := testHost(t)
	name := load(t, h, "haul")
	p, err := h.Paths(name)
	must(t, err)
	defer p.Close()
	if list, err := p.List(); err != nil || len(list) != 0 {
		t.Fatalf("at first: %v, %v", list, err)
	}
	cookie, err := kernel.NetNSCookie()
	must(t, err)
	now, err := monotonic()
	must(t, err)
	key := func(address string) pathKey {
		return pathKey{NetNS: [2]uint32{uint32(cookie >> 32), uint32(cookie)}, Address: netip.MustParseAddr(address).As16()}
	}
	seen := func(ago time.Duration) carriedRecord {
		// On a machine that started just now, the past may be before its start.
		return carriedRecord{BytesPerSecond: 12_500_000, SeenUs: uint64((now - ago).Microseconds()), RTTUs: 300_250, FloorQ16: 6554}
	}
	putPath(t, p, key("203.0.113.7"), seen(0))
	marked := key("2001:db8::5")
	marked.Mark, marked.Device = 7, 3
	putPath(t, p, marked, seen(0))
	putPath(t, p, key("203.0.113.8"), seen(PathMemory))                      // too old
	putPath(t, p, key("203.0.113.9"), carriedRecord{SeenUs: seen(0).SeenUs}) // nothing is known
	other := key("203.0.113.10")
	other.NetNS[1]++
	putPath(t, p, other, seen(0))

	list, err := p.List()
	must(t, err)
	if len(list) != 2 || list[0].Destination != netip.MustParseAddr("203.0.113.7") || list[0].RateBps != 100e6 ||
		list[0].RTT.Duration() != 300250*time.Microsecond || list[0].Floor < 0.1 || list[0].Floor > 0.1001 ||
		list[1].Mark != 7 || list[1].Device != 3 {
		t.Errorf("listed %+v", list)
	}

	if n, err := p.Forget(netip.MustParsePrefix("203.0.113.0/25")); err != nil || n != 3 {
		t.Errorf("forgot %d, %v; want 3 of this namespace", n, err)
	}
	if n, err := p.Forget(netip.MustParsePrefix("::/0")); err != nil || n != 1 {
		t.Errorf("forgot %d, %v; want 1 of IPv6", n, err)
	}
	if n, err := p.Forget(); err != nil || n != 0 {
		t.Errorf("forgot %d, %v; want none that is left", n, err)
	}
	var b []byte
	if err := p.paths.Lookup(other, &b); err != nil {
		t.Errorf("the path of another namespace: %v", err)
	}
}

// The switch holds over a replacement of the build, and ends with the algorithm.
func TestPathsSwitch(t *testing.T) {
	eachWayAtOnce(t, func(t *testing.T, h *Host) {
		name := load(t, h, "haul")
		resumes := func() bool {
			t.Helper()
			p, err := h.Paths(name)
			must(t, err)
			defer p.Close()
			is, err := p.Resumes()
			must(t, err)
			return is
		}
		set := func(on bool) {
			t.Helper()
			p, err := h.Paths(name)
			must(t, err)
			defer p.Close()
			must(t, p.SetResumes(on))
		}
		if !resumes() {
			t.Error("off after a load")
		}
		set(false)
		former, err := h.readBuild(name)
		must(t, err)
		former.sum[0]++
		must(t, h.writeBuild(name, former))
		if result, err := h.Load(context.Background(), "haul", name); err != nil || result.Outcome != Replaced {
			t.Fatalf("load another build: %+v, %v", result, err)
		}
		if resumes() {
			t.Error("on after a replacement")
		}
		set(true)
		if !resumes() {
			t.Error("off after on")
		}
		set(false)
		_, err = h.Unload(context.Background(), name)
		must(t, err)
		if _, err := h.Paths(name); !errors.Is(err, ErrNoPaths) {
			t.Errorf("after the unload: %v", err)
		}
		must(t, reload(h, name))
		if !resumes() {
			t.Error("off after an unload and a load")
		}
	})
}

func reload(h *Host, name string) error {
	_, err := h.Load(context.Background(), "haul", name)
	return err
}

// A build with another format of the paths replaces a loaded one, and forgets them.
func TestPathsFormat(t *testing.T) {
	t.Parallel()
	h := testHost(t)
	name := load(t, h, "haul")
	pin := h.dir(name, "paths")
	must(t, os.Remove(pin))
	old, err := ebpf.NewMap(&ebpf.MapSpec{Name: "paths", Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 16})
	must(t, err)
	defer old.Close()
	must(t, old.Pin(pin))
	former, err := h.readBuild(name)
	must(t, err)
	former.sum[0]++
	must(t, h.writeBuild(name, former))
	if result, err := h.Load(context.Background(), "haul", name); err != nil || result.Outcome != Replaced {
		t.Fatalf("load another build: %+v, %v", result, err)
	}
	p, err := h.Paths(name)
	must(t, err)
	defer p.Close()
	if p.paths.KeySize() != uint32(binary.Size(pathKey{})) {
		t.Errorf("the paths have a key of %d bytes", p.paths.KeySize())
	}
}

func TestNoPaths(t *testing.T) {
	h := testHost(t)
	if _, err := h.Paths(load(t, h, "hybla")); !errors.Is(err, ErrNoPaths) {
		t.Errorf("the paths of hybla: %v", err)
	}
}

func TestWritePaths(t *testing.T) {
	var b strings.Builder
	WritePaths(&b, []CarriedPath{
		{Destination: netip.MustParseAddr("203.0.113.7"), RTT: units.Seconds(300 * time.Millisecond), RateBps: 96.5e6, Floor: 0.1, Age: units.Seconds(5 * time.Second)},
		{Destination: netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666"), Mark: 7, Device: 3, RTT: units.Seconds(9 * time.Second), RateBps: 2e9, Age: units.Seconds(9 * time.Minute)},
	})
	const want = `TO                                            RTT        RATE     LOSS     AGE
203.0.113.7                              300.0 ms   96.5 Mb/s      10%      5s
2001:db8:1111:2222:3333:4444:5555:6666  9000.0 ms   2.00 Gb/s       0%      9m
  sockets with mark 0x7, bound to device 3
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
