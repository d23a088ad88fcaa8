package hostchanges

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/tune/mss"
	"longhaul/internal/tune/route"
	"longhaul/internal/words/ccnames"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// lab is a network namespace with a device and routes, two owners, and algorithms under
// names of the test's own: the kernel has one table of them.
type lab struct {
	ledger, bpffs string
	objects       fs.FS
	algorithms    []string
	device        *netlink.Veth
}

func newLab(t *testing.T) *lab {
	t.Helper()
	nettest.RequireRoot(t)
	nettest.RequireSandbox(t)
	l := &lab{ledger: filepath.Join(t.TempDir(), "host"), bpffs: t.TempDir()}
	must(t, unix.Mount("bpf", l.bpffs, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(l.bpffs, 0)) })
	objects := fstest.MapFS{}
	built := cc.NewHost(ledger.By{}).Objects
	files, err := fs.Glob(built, "hybla_*.o")
	must(t, err)
	for range 2 {
		name := fmt.Sprintf("t%04x", rand.Uint32()&0xffff) // as long as hybla
		l.algorithms = append(l.algorithms, name)
		for _, file := range files {
			object, err := fs.ReadFile(built, file)
			must(t, err)
			objects[strings.Replace(file, "hybla", name, 1)] = &fstest.MapFile{Data: bytes.ReplaceAll(object, []byte("hybla"), []byte(name))}
		}
	}
	l.objects = objects
	l.device = &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}
	must(t, netlink.LinkAdd(l.device))
	t.Cleanup(func() { must(t, netlink.LinkDel(l.device)) })
	for _, name := range []string{"lan0", "lan1"} {
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0))
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/addr_gen_mode", []byte("1"), 0))
		link, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
	}
	for _, address := range []string{"10.77.0.1/24", "fd77::1/64"} {
		a, err := netlink.ParseAddr(address)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(l.device, a))
	}
	for _, r := range []netlink.Route{
		{Dst: ipNet("0.0.0.0/0"), Gw: net.ParseIP("10.77.0.2")},
		{Dst: ipNet("198.51.100.0/24"), Gw: net.ParseIP("10.77.0.2"), MTU: 1400, InitCwnd: 33},
		{Dst: ipNet("fd99::/16"), Gw: net.ParseIP("fd77::2"), MTU: 1400},
	} {
		r.LinkIndex = l.device.Attrs().Index
		nettest.Eventually(t, time.Minute, func() bool { err = netlink.RouteAdd(&r); return err == nil },
			func() string { return fmt.Sprintf("add %v: %v", r.Dst, err) })
	}
	return l
}

func ipNet(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// host is the machine for an owner.
func (l *lab) host(owner string, means ledger.Means) *Host {
	h := NewHost(ledger.By{Owner: owner, Means: means, Command: "a test"})
	h.MSS.BPFFS, h.MSS.Ledger = l.bpffs, l.ledger
	h.Intercept.Ledger = l.ledger
	h.Destinations.CC.BPFFS, h.Destinations.CC.Ledger, h.Destinations.CC.Objects = l.bpffs, l.ledger, l.objects
	h.Destinations.Routes.Ledger = l.ledger
	return h
}

// dump describes what longhaul can change in the kernel, and its files.
func (l *lab) dump(t *testing.T) (all []string) {
	t.Helper()
	for prefix, metrics := range l.routes(t) {
		all = append(all, fmt.Sprint("route ", prefix, " ", metrics))
	}
	name, err := cc.ReadDefault()
	must(t, err)
	all = append(all, "default "+name)
	for _, name := range l.algorithms {
		if cc.IsAvailable(name) {
			all = append(all, "algorithm "+name)
		}
	}
	rules, err := l.host("", ledger.Command).MSS.List()
	must(t, err)
	for _, r := range rules {
		all = append(all, "mss "+r.Text()+r.Problem)
	}
	for _, dir := range []string{l.ledger, filepath.Join(l.bpffs, "longhaul")} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			all = append(all, fmt.Sprint("file ", dir, " ", err))
		}
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(l.device, parent)
		if err == nil && len(filters) > 0 {
			all = append(all, fmt.Sprint("filters ", filters))
		}
	}
	slices.Sort(all)
	return all
}

// metrics are the values of a route that the model changes.
type metrics map[route.Metric]string

// routes are the main table's routes with their metrics, and whether longhaul made them.
func (l *lab) routes(t *testing.T) map[string]metrics {
	t.Helper()
	found := map[string]metrics{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		must(t, err)
		for _, r := range all {
			m := metrics{}
			for name, n := range map[route.Metric]int{route.MTU: r.MTU, route.AdvMSS: r.AdvMSS, route.InitCwnd: r.InitCwnd} {
				if n != 0 {
					m[name] = strconv.Itoa(n)
				}
			}
			if r.Congctl != "" {
				m[route.CongestionControl] = r.Congctl
			}
			found[r.Dst.String()] = m
		}
	}
	return found
}

// modelClaim is a claim of the model.
type modelClaim struct {
	owner string
	means ledger.Means
	value string
	// inherited is the prefix of the route that a new one was a copy of.
	inherited string
}

// thing is what the model knows of a changed thing.
type thing struct {
	former string
	claims []modelClaim
}

func (g *thing) inForce() string {
	if n := len(g.claims); n > 0 {
		return g.claims[n-1].value
	}
	return g.former
}

// model is the host in memory: what the kernel has, and the claims.
type model struct {
	lab    *lab
	routes map[string]metrics
	made   map[string]bool
	values map[string]string // of default and rules in the kernel
	loaded map[string]bool
	things map[string]*thing // by kind, name and part
}

const none = "" // no value

var covers = map[string]string{"203.0.113.0/24": "0.0.0.0/0", "fd99:1::/32": "fd99::/16"}

func routeKey(prefix string, m route.Metric) string { return "route " + prefix + " " + string(m) }

// kernel returns the kernel's value of a thing.
func (m *model) kernel(key string) string {
	kind, rest, _ := strings.Cut(key, " ")
	if kind == "route" {
		prefix, metric, _ := strings.Cut(rest, " ")
		return m.routes[prefix][route.Metric(metric)]
	}
	return m.values[key]
}

func (m *model) setKernel(key, value string) {
	kind, rest, _ := strings.Cut(key, " ")
	if kind != "route" {
		m.values[key] = value
		return
	}
	prefix, metric, _ := strings.Cut(rest, " ")
	delete(m.routes[prefix], route.Metric(metric))
	if value != none {
		m.routes[prefix][route.Metric(metric)] = value
	}
}

// set claims a thing.
func (m *model) set(key string, c modelClaim) {
	kind, rest, _ := strings.Cut(key, " ")
	if kind == "route" {
		prefix, _, _ := strings.Cut(rest, " ")
		if m.routes[prefix] == nil {
			m.routes[prefix], m.made[prefix] = maps.Clone(m.routes[covers[prefix]]), true
			m.inherit(prefix)
		}
	}
	g := m.things[key]
	if g == nil || g.inForce() != m.kernel(key) {
		g = &thing{former: m.kernel(key)}
		m.things[key] = g
	}
	g.claims = slices.DeleteFunc(g.claims, func(old modelClaim) bool { return old.owner == c.owner && old.means == c.means })
	g.claims = append(g.claims, c)
	m.setKernel(key, c.value)
	if m.isOurs(c.value) && (kind == "route" || kind == "default") {
		m.loaded[c.value] = true
	}
	m.release()
}

// inherit gives a new route the claims on the route that it is a copy of.
func (m *model) inherit(prefix string) {
	for _, metric := range route.Metrics() {
		from := routeKey(covers[prefix], metric)
		g := m.things[from]
		if g == nil || g.inForce() != m.kernel(from) {
			continue
		}
		copied := &thing{former: g.former, claims: slices.Clone(g.claims)}
		for i := range copied.claims {
			copied.claims[i].inherited = covers[prefix]
		}
		m.things[routeKey(prefix, metric)] = copied
	}
}

// isClaimed reports whether a route that longhaul made has a claim of its own.
func (m *model) isClaimed(prefix string) bool {
	for key, g := range m.things {
		if strings.HasPrefix(key, "route "+prefix+" ") && slices.ContainsFunc(g.claims, func(c modelClaim) bool { return c.inherited == "" }) {
			return true
		}
	}
	return false
}

func (m *model) isOurs(name string) bool { return slices.Contains(m.lab.algorithms, name) }

// release unloads algorithms that nobody claims or needs.
func (m *model) release() {
	for _, name := range m.lab.algorithms {
		used := m.things["algorithm "+name] != nil
		for key, g := range m.things {
			for _, c := range g.claims {
				used = used || !strings.HasPrefix(key, "mss") && c.value == name
			}
		}
		m.loaded[name] = m.loaded[name] && used
	}
}

// undo takes the chosen claims back.
func (m *model) undo(chooseOwn func(key string, c modelClaim) bool) {
	choose := func(key string, c modelClaim) bool {
		if c.inherited == "" || chooseOwn(key, c) {
			return chooseOwn(key, c)
		}
		return chooseOwn("route "+c.inherited+key[strings.LastIndex(key, " "):], c)
	}
	for _, key := range slices.Sorted(maps.Keys(m.things)) {
		g := m.things[key]
		if g == nil {
			continue
		}
		before := g.inForce()
		n := len(g.claims)
		top := n > 0 && choose(key, g.claims[n-1])
		g.claims = slices.DeleteFunc(g.claims, func(c modelClaim) bool { return choose(key, c) })
		if strings.HasPrefix(key, "algorithm ") {
			if len(g.claims) == 0 {
				delete(m.things, key)
			}
			continue
		}
		if top && m.kernel(key) == before {
			m.setKernel(key, g.inForce())
		}
		if len(g.claims) == 0 {
			delete(m.things, key)
		}
	}
	for prefix := range m.made {
		if !m.isClaimed(prefix) {
			delete(m.routes, prefix)
			delete(m.made, prefix)
			maps.DeleteFunc(m.things, func(key string, _ *thing) bool { return strings.HasPrefix(key, "route "+prefix+" ") })
		}
	}
	m.release()
}

// compare holds the kernel and the ledger against the model.
func (m *model) compare(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(m.routes, m.lab.routes(t)); diff != "" {
		t.Errorf("routes (-model +kernel):\n%s", diff)
	}
	if now, err := cc.ReadDefault(); err != nil || now != m.values["default"] {
		t.Errorf("the default is %s, %v, want %s", now, err, m.values["default"])
	}
	for _, name := range m.lab.algorithms {
		if got := cc.IsAvailable(name); got != m.loaded[name] {
			t.Errorf("%s is registered: %v, want %v", name, got, m.loaded[name])
		}
	}
	host := m.lab.host("", ledger.Command)
	rules, err := host.MSS.List()
	must(t, err)
	got, want := map[string]string{}, map[string]string{}
	for _, r := range rules {
		got["mss "+strconv.Itoa(int(r.Port))] = strconv.Itoa(r.MSS)
		if r.Problem != "" {
			t.Errorf("%s: %s", r.Text(), r.Problem)
		}
	}
	for key, value := range m.values {
		if strings.HasPrefix(key, "mss") && value != none {
			want[key] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-model +kernel):\n%s", diff)
	}
	m.compareClaims(t, host)
}

// compareClaims holds that nobody's claim was taken by another's undo.
func (m *model) compareClaims(t *testing.T, host *Host) {
	t.Helper()
	changes, err := host.List(Selection{Choose: ledger.AllClaims, Everywhere: true})
	must(t, err)
	got, want := map[string][]string{}, map[string][]string{}
	for _, c := range changes {
		key := string(c.Kind)
		switch c.Kind {
		case ledger.Algorithm:
			key += " " + c.Key().Name
		case ledger.Route:
			key += " " + c.Key().Name + " " + c.Key().Part
		case ledger.MSS:
			key += " " + strconv.Itoa(int(ledger.Decode[mss.Rule](c.Claims[0].Value).Port))
		}
		for _, claim := range c.Claims {
			got[key] = append(got[key], claim.Owner+" "+string(claim.Means))
		}
		if c.Interrupted {
			t.Errorf("%s is marked as interrupted", key)
		}
	}
	for key, g := range m.things {
		for _, c := range g.claims {
			want[key] = append(want[key], c.owner+" "+string(c.means))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-model +ledger):\n%s", diff)
	}
}

// walk makes random steps on the host and on the model.
type walk struct {
	*model
	t      *testing.T
	random *rand.Rand
	others bool // other programs change things as well
}

func pick[T any](w *walk, all ...T) T { return all[w.random.IntN(len(all))] }

var prefixes = []string{"198.51.100.0/24", "203.0.113.0/24", "fd99::/16", "fd99:1::/32"}

// step makes one step and describes it.
func (w *walk) step() (description string, err error) {
	ctx := context.Background()
	owner, means := pick(w, "alice", "bob"), pick(w, ledger.Command, ledger.Command, ledger.Doctor)
	h := w.lab.host(owner, means)
	prefix := pick(w, prefixes...)
	p := netip.MustParsePrefix(prefix)
	port := pick(w, uint16(80), 443)
	algorithm := pick(w, w.lab.algorithms...)
	by := func(value string) modelClaim { return modelClaim{owner: owner, means: means, value: value} }
	describe := func(format string, args ...any) string {
		return owner + " (" + string(means) + "): " + fmt.Sprintf(format, args...)
	}
	switch n := w.random.IntN(100); {
	case n < 20:
		name := pick(w, algorithm, "reno", "cubic")
		_, err = h.Destinations.Use(ctx, []netip.Prefix{p}, name, 0)
		w.set(routeKey(prefix, route.CongestionControl), by(name))
		return describe("use %s for %s", name, prefix), err
	case n < 38:
		metric := pick(w, route.MTU, route.AdvMSS, route.InitCwnd)
		value := 1290 + w.random.IntN(50)
		_, err = h.Destinations.SetRoutes(ctx, []netip.Prefix{p}, route.Change{Metrics: map[route.Metric]route.Value{metric: {Number: uint32(value)}}})
		w.set(routeKey(prefix, metric), by(strconv.Itoa(value)))
		return describe("set %s of %s to %d", metric, prefix, value), err
	case n < 48:
		value := 1000 + w.random.IntN(50)
		_, err = h.MSS.Set(ctx, mss.Rule{Device: "lan0", Port: port, Action: mss.Clamp, MSS: value}, mss.SetOptions{})
		w.set("mss "+strconv.Itoa(int(port)), by(strconv.Itoa(value)))
		return describe("clamp port %d to %d", port, value), err
	case n < 54:
		_, err = h.Destinations.CC.Load(ctx, algorithm, algorithm)
		w.loaded[algorithm] = true
		w.claimAlgorithm(algorithm, by(""))
		return describe("load %s", algorithm), err
	case n < 58:
		if _, err = h.Destinations.CC.Load(ctx, algorithm, algorithm); err == nil {
			err = h.Destinations.CC.SetDefault(ctx, algorithm)
		}
		w.loaded[algorithm] = true
		w.claimAlgorithm(algorithm, by(""))
		w.set("default", by(algorithm))
		return describe("load %s --default", algorithm), err
	case n < 62 && w.others:
		return w.otherProgram(prefix), nil
	case n < 70:
		return describe("undo the use for %s", prefix), w.takeBack(h, owner, false, func(key string, _ modelClaim) bool { return key == routeKey(prefix, route.CongestionControl) })
	case n < 78:
		return describe("undo %s", prefix), w.takeBack(h, owner, false, func(key string, _ modelClaim) bool { return strings.HasPrefix(key, "route "+prefix+" ") })
	case n < 84:
		return describe("undo port %d", port), w.takeBack(h, owner, false, func(key string, _ modelClaim) bool { return key == "mss "+strconv.Itoa(int(port)) })
	case n < 92:
		return describe("unload %s", algorithm), w.takeBack(h, owner, false, func(key string, c modelClaim) bool {
			return key == "algorithm "+algorithm || !strings.HasPrefix(key, "mss") && c.value == algorithm
		})
	case n < 95:
		return describe("undo what doctor applied"), w.takeBack(h, owner, false, func(_ string, c modelClaim) bool { return c.means == ledger.Doctor })
	case n < 97:
		return describe("undo %s of all owners", prefix), w.takeBack(h, owner, true, func(key string, _ modelClaim) bool { return strings.HasPrefix(key, "route "+prefix+" ") })
	case n < 98:
		return describe("undo everything of all owners"), w.takeBack(h, owner, true, func(string, modelClaim) bool { return true })
	}
	return describe("undo the default"), w.takeBack(h, owner, false, func(key string, _ modelClaim) bool { return key == "default" })
}

func (w *walk) claimAlgorithm(name string, c modelClaim) {
	g := w.things["algorithm "+name]
	if g == nil {
		g = &thing{}
		w.things["algorithm "+name] = g
	}
	g.claims = slices.DeleteFunc(g.claims, func(old modelClaim) bool { return old.owner == c.owner && old.means == c.means })
	g.claims = append(g.claims, c)
}

// takeBack undoes claims on the host and on the model: the owner's, or those of all.
func (w *walk) takeBack(h *Host, owner string, all bool, which func(string, modelClaim) bool) error {
	choose := func(key string, c modelClaim) bool { return (all || c.owner == owner) && which(key, c) }
	_, err := h.Undo(context.Background(), Selection{Everywhere: true, Choose: func(k ledger.Key, c ledger.Claim) bool {
		key := strings.TrimSpace(string(k.Kind) + " " + k.Name + " " + k.Part)
		if k.Kind == ledger.MSS {
			key = "mss " + strconv.Itoa(int(ledger.Decode[mss.Rule](c.Value).Port))
		}
		return choose(key, modelClaim{owner: c.Owner, means: c.Means, value: c.Needs})
	}})
	w.undo(choose)
	return err
}

// otherProgram changes a thing as ip route and sysctl do.
func (w *walk) otherProgram(prefix string) string {
	if w.random.IntN(3) == 0 || w.routes[prefix] == nil {
		allowed, err := cc.Allowed()
		must(w.t, err)
		allowed = slices.DeleteFunc(allowed, func(name string) bool { return !ccnames.InLinux(name) }) // tests unload theirs
		name := pick(w, allowed...)
		must(w.t, os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(name), 0))
		w.values["default"] = name
		return "sysctl: the default is " + name
	}
	family := netlink.FAMILY_V4
	if strings.Contains(prefix, ":") {
		family = netlink.FAMILY_V6
	}
	all, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: ipNet(prefix)}, netlink.RT_FILTER_DST)
	must(w.t, err)
	r := all[0]
	r.InitCwnd = 60 + w.random.IntN(9)
	must(w.t, netlink.RouteReplace(&r))
	w.setKernel(routeKey(prefix, route.InitCwnd), strconv.Itoa(r.InitCwnd))
	return fmt.Sprintf("ip route: initcwnd of %s is %d", prefix, r.InitCwnd)
}

// TestModel lets two owners of one host set, use, load, apply and undo in random order.
// After each step the kernel has what the model says. After both have undone all of
// theirs the host is as before.
func TestModel(t *testing.T) {
	steps := 200
	if text := os.Getenv("LONGHAUL_MODEL_STEPS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		steps = n
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LONGHAUL_MODEL_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		seed = n
	}
	for _, others := range []bool{false, true} {
		t.Run(fmt.Sprintf("others=%v", others), func(t *testing.T) {
			t.Logf("%d steps; repeat with LONGHAUL_MODEL_SEED=%d", steps, seed)
			l := newLab(t)
			before := l.dump(t)
			defaultName, err := cc.ReadDefault()
			must(t, err)
			t.Cleanup(func() {
				must(t, os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(defaultName), 0))
			})
			w := &walk{
				model: &model{
					lab: l, routes: l.routes(t), made: map[string]bool{}, values: map[string]string{"default": defaultName},
					loaded: map[string]bool{}, things: map[string]*thing{},
				},
				t: t, random: rand.New(rand.NewPCG(seed, 1)), others: others,
			}
			var last []string
			for i := range steps {
				description, err := w.step()
				last = append(last[max(0, len(last)-11):], description)
				if err != nil {
					t.Errorf("%v", err)
				}
				if w.compare(t); t.Failed() {
					t.Fatalf("step %d, after\n%s", i, strings.Join(last, "\n"))
				}
			}
			for _, owner := range []string{"alice", "bob"} {
				must(t, w.takeBack(l.host(owner, ledger.Command), owner, false, func(string, modelClaim) bool { return true }))
				w.compare(t)
			}
			if diff := cmp.Diff(before, l.dump(t)); diff != "" && !others {
				t.Errorf("the host is not as before:\n%s", diff)
			}
			if _, err := os.Stat(l.ledger); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the ledger is left: %v", err)
			}
		})
	}
}
