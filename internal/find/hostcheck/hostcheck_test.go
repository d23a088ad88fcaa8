package hostcheck

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"longhaul/internal/sys/kernel"
	"longhaul/internal/sys/ledger"
	"longhaul/internal/tune/cc"
	"longhaul/internal/words/units"
	"longhaul/test/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// fakeRoot makes a directory with files of a host.
func fakeRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, strings.ReplaceAll(path, "RELEASE", kernel.Release()))
		nettest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		nettest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

// checkOn runs one check on a fake root.
func checkOn(t *testing.T, feature string, path Path, files map[string]string, check func(*checker)) Report {
	t.Helper()
	c := &checker{Options: Options{Path: path, root: fakeRoot(t, files)}, feature: feature}
	check(c)
	c.addCosts()
	return Report{Path: path, Parts: c.parts}
}

// TestOutOfDescriptors holds that a try-out which fails for want of descriptors says so, and blames nothing else.
func TestOutOfDescriptors(t *testing.T) {
	r := checkOn(t, "relay", Path{}, nil, func(c *checker) {
		c.failed("splice", No, fmt.Errorf("make a pipe: %w", syscall.EMFILE), "allow splice")
		c.failed("splice", No, fmt.Errorf("make a pipe: %w", syscall.EPERM), "allow splice")
	})
	for i, want := range []string{"raise the limit of open files", "allow splice"} {
		if got := r.Parts[i].Remedy; !strings.HasPrefix(got, want) {
			t.Errorf("%s: remedy %q, want %q", r.Parts[i].Why, got, want)
		}
	}
}

func TestSysctls(t *testing.T) {
	const dir = "/proc/sys/net/ipv4/"
	good := map[string]string{dir + "tcp_window_scaling": "1\n", dir + "tcp_sack": "1\n", dir + "tcp_timestamps": "1\n",
		dir + "tcp_wmem": "4096\t16384\t67108864\n", dir + "tcp_rmem": "4096\t131072\t67108864\n"}
	lossy, mitre := Paths()["lossy-lfn"], Paths()["mitre"]
	for _, test := range []struct {
		path        Path
		file, value string
		part        string
		state       State
		remedy      string
		loses       float64 // Mb/s, at least; negative: no figure
	}{
		{path: lossy, part: "tcp_sack", state: Yes},
		{path: lossy, part: "tcp_wmem", state: Yes},
		// 65535 bytes in 63 ms are 8.3 Mb/s, of 965.
		{mitre, "tcp_window_scaling", "0", "tcp_window_scaling", No, "sysctl -w net.ipv4.tcp_window_scaling=1", 957},
		// 10 segments in 300 ms are 0.39 Mb/s, of 96.5.
		{lossy, "tcp_sack", "0", "tcp_sack", Limited, "sysctl -w net.ipv4.tcp_sack=1", 96.1},
		{mitre, "tcp_sack", "0", "tcp_sack", Limited, "sysctl -w net.ipv4.tcp_sack=1", 0},
		{mitre, "tcp_timestamps", "0", "tcp_timestamps", Limited, "sysctl -w net.ipv4.tcp_timestamps=1", -1},
		// 2 MiB in 63 ms are 266 Mb/s; in 300 ms, 55.9.
		{mitre, "tcp_wmem", "4096 16384 4194304", "tcp_wmem", Limited, "sysctl -w net.ipv4.tcp_wmem='4096 16384 33554432'", 699},
		{lossy, "tcp_rmem", "4096 131072 4194304", "tcp_rmem", Limited, "sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'", 40.6},
		// 8 MiB in 300 ms are more than the path carries.
		{lossy, "tcp_rmem", "4096 131072 16777216", "tcp_rmem", Limited, "sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'", -1},
		{lossy, "tcp_rmem", "nonsense", "tcp_rmem", Unknown, "", -1},
	} {
		files := map[string]string{}
		for path, value := range good {
			files[path] = value
		}
		if test.file != "" {
			files[dir+test.file] = test.value + "\n"
		}
		p, _ := checkOn(t, "sysctl", test.path, files, (*checker).sysctl).Find("sysctl", test.part)
		at := fmt.Sprintf("%s %s %q", test.path.Name, test.part, test.value)
		if p.State != test.state || !strings.HasPrefix(p.Remedy, test.remedy) {
			t.Errorf("%s: got %+v, want %s and %q", at, p, test.state, test.remedy)
		}
		switch {
		case test.state == Yes && p.Cost != nil:
			t.Errorf("%s: a part that works costs %+v", at, *p.Cost)
		case test.loses < 0 && p.Cost != nil && p.Cost.Unknown == "":
			t.Errorf("%s: cost %+v, want none", at, *p.Cost)
		case test.state != Yes && test.loses >= 0:
			if p.Cost == nil || p.Cost.LosesBps < test.loses*1e6 || p.Cost.LosesBps > (test.loses+1)*1e6 {
				t.Errorf("%s: cost %+v, want %g Mb/s", at, p.Cost, test.loses)
			}
		}
	}
}

// TestKernelAlgorithm: the module's state decides what is to be done for an algorithm that
// is not registered.
func TestKernelAlgorithm(t *testing.T) {
	const name = "nosuch" // registered nowhere
	dep := "kernel/net/ipv4/tcp_nosuch.ko.xz: kernel/lib/x.ko.xz\n"
	for _, test := range []struct {
		files  map[string]string
		state  State
		remedy string
	}{
		{map[string]string{"/lib/modules/RELEASE/modules.dep": dep}, Limited, "modprobe tcp_nosuch"},
		{map[string]string{"/lib/modules/RELEASE/modules.dep": dep, "/proc/sys/kernel/modules_disabled": "1\n"}, No, "load tcp_nosuch at boot"},
		{map[string]string{"/lib/modules/RELEASE/modules.dep": "", "/etc/os-release": "ID=debian\n"}, No, "boot the kernel of the package linux-image"},
		{map[string]string{"/lib/modules/RELEASE/modules.dep": "", "/etc/os-release": "ID=ubuntu\nID_LIKE=debian\n"}, No, "apt install linux-modules-extra"},
		{map[string]string{"/lib/modules/RELEASE/modules.dep": "", "/etc/os-release": "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"}, No, "install the package that dnf provides '*/tcp_nosuch.ko*'"},
		{map[string]string{"/lib/modules/RELEASE/modules.dep": ""}, No, "boot a kernel with the module tcp_nosuch"},
		{nil, Unknown, "modprobe tcp_nosuch"},
	} {
		r := checkOn(t, "cc", Paths()["lossy-lfn"], test.files, func(c *checker) { c.kernels(name) })
		if p, _ := r.Find("cc", name); p.State != test.state || !strings.HasPrefix(p.Remedy, test.remedy) {
			t.Errorf("%v: got %+v, want %s and %q", test.files, p, test.state, test.remedy)
		}
	}
}

// TestConnections: a module that the kernel would load is not asked for.
func TestConnections(t *testing.T) {
	for _, test := range []struct {
		dep, disabled string
		state         State
		says          string
	}{
		{"kernel/net/ipv4/inet_diag.ko:\nkernel/net/ipv4/tcp_diag.ko:\n", "0", Yes, "loads inet_diag at the first use"},
		{"kernel/net/ipv4/inet-diag.ko:\n", "1", No, "takes no more modules"},
		{"kernel/other.ko:\n", "0", No, "no module inet_diag"},
	} {
		r := checkOn(t, "doctor", Path{}, map[string]string{
			"/lib/modules/RELEASE/modules.dep": test.dep, "/proc/sys/kernel/modules_disabled": test.disabled,
		}, (*checker).connections)
		if p, _ := r.Find("doctor", "connections"); p.State != test.state || !strings.Contains(p.Detail+p.Why, test.says) {
			t.Errorf("%q: got %+v, want %s and %q", test.dep, p, test.state, test.says)
		}
	}
	r := checkOn(t, "doctor", Path{}, map[string]string{"/lib/modules/RELEASE/modules.dep": "",
		"/lib/modules/RELEASE/modules.builtin": "kernel/net/ipv4/inet_diag.ko\nkernel/net/ipv4/tcp_diag.ko\n"}, (*checker).connections)
	if p, _ := r.Find("doctor", "connections"); p.State != Yes || p.Detail != "" {
		t.Errorf("built in: got %+v, want a try-out that works", p)
	}
}

// TestKernelRemedy: the remedy names the package of this distribution.
func TestKernelRemedy(t *testing.T) {
	for _, test := range []struct{ release, want string }{
		{"ID=debian\nVERSION_CODENAME=bookworm\n", "run a newer kernel: apt install -t bookworm-backports " + debianKernel()},
		{"ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"22.04\"\n", "run a newer kernel: apt install linux-generic-hwe-22.04"},
		{"ID=\"rhel\"\nVERSION_ID=\"9.4\"\n", "run the newest kernel of this release, or a newer release"},
		{"ID=arch\n", "run a newer kernel"},
	} {
		c := &checker{Options: Options{root: fakeRoot(t, map[string]string{"/usr/lib/os-release": test.release})}}
		if got := c.kernelRemedy(); got != test.want {
			t.Errorf("%q: %q, want %q", test.release, got, test.want)
		}
	}
}

func TestLabAndService(t *testing.T) {
	for _, test := range []struct {
		files   map[string]string
		devices State
		systemd State
	}{
		{map[string]string{"/dev/net/tun": "", "/run/systemd/system/x": ""}, Yes, Yes},
		{map[string]string{"/lib/modules/RELEASE/modules.dep": "kernel/drivers/net/veth.ko:\n"}, Limited, No},
		{map[string]string{"/lib/modules/RELEASE/modules.dep": "", "/dev/net/tun": ""}, No, No},
	} {
		refused := func(c *checker) { c.Sandbox = func() error { return os.ErrPermission }; c.lab() }
		test.files["/proc/sys/user/max_user_namespaces"] = "0\n"
		r := checkOn(t, "lab", Path{}, test.files, refused)
		if p, _ := r.Find("lab", "devices"); p.State != test.devices {
			t.Errorf("%v: got %+v, want %s", test.files, p, test.devices)
		}
		if p, _ := r.Find("lab", "namespaces"); p.State != No || !strings.Contains(p.Remedy, "sysctl -w user.max_user_namespaces=15000") {
			t.Errorf("got %+v, want the sysctl", p)
		}
		r = checkOn(t, "service", Path{}, test.files, (*checker).service)
		if p, _ := r.Find("service", "systemd"); p.State != test.systemd {
			t.Errorf("%v: got %+v, want %s", test.files, p, test.systemd)
		}
	}
}

// TestAlgorithmCost: the best of the other algorithms takes a missing one's place. If its
// goodput is not known, neither is the cost.
func TestAlgorithmCost(t *testing.T) {
	lossy := Paths()["lossy-lfn"]
	other := lossy
	other.RateBps, other.Measured, other.By = 20e6, nil, ""
	clean := other
	clean.Loss = 0
	for _, test := range []struct {
		path    Path
		have    []string
		missing string
		loses   float64 // Mb/s; negative: no figure
		instead string
	}{
		{lossy, nil, "haul", 89.58, "cubic"},
		{lossy, []string{"bbr"}, "haul", 13.7, "bbr"},
		{lossy, []string{"haul"}, "bbr", 75.88, "cubic"},
		{lossy, []string{"bbr", "haul"}, "brutal", 3.7, "haul"},
		{lossy, []string{"bbr"}, "hybla", 0, "bbr"},
		{lossy, nil, "hybla", 0.65, "cubic"},
		{other, nil, "haul", -1, "cubic"},
		{other, []string{"bbr"}, "haul", -1, "bbr"},
		{clean, []string{"bbr"}, "haul", 0, "cubic"},
	} {
		c := &checker{Options: Options{Path: test.path}, feature: "cc"}
		for _, name := range test.have {
			c.yes(name, "")
		}
		c.add(Part{Name: test.missing, State: No, kernels: test.missing == "bbr"})
		c.addCosts()
		cost := *c.parts[len(c.parts)-1].Cost
		if test.loses < 0 && cost.Unknown == "" || test.loses >= 0 && (cost.Unknown != "" || cost.LosesBps < test.loses*1e6-1e4 || cost.LosesBps > test.loses*1e6+1e4) {
			t.Errorf("%v without %s, with %v: %+v, want %g Mb/s", test.path, test.missing, test.have, cost, test.loses)
		}
		if cost.Instead != test.instead {
			t.Errorf("%v without %s, with %v: %q instead, want %q", test.path, test.missing, test.have, cost.Instead, test.instead)
		}
		if cost.Unknown == "" && cost.Source == "" {
			t.Errorf("%v without %s: a figure without a source", test.path, test.missing)
		}
	}
}

// TestMeasuredFigures holds that the figures are those of docs/records/results.md.
func TestMeasuredFigures(t *testing.T) {
	page, err := os.ReadFile("../../../docs/records/results.md")
	nettest.Must(t, err)
	_, section, found := strings.Cut(string(page), "\n## Loss\n")
	if !found {
		t.Fatal("docs/records/results.md has no section Loss")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	row := regexp.MustCompile(`(?m)^\| \**(\w+)[^|]*\| \**([\d.]+)`)
	got := map[string]float64{}
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		mbps, err := strconv.ParseFloat(m[2], 64)
		nettest.Must(t, err)
		got[strings.ToLower(m[1])] = mbps * 1e6
	}
	path := Paths()["lossy-lfn"]
	for name, want := range path.Measured {
		if got[name] != want {
			t.Errorf("%s: %g b/s, and docs/records/results.md has %g", name, want, got[name])
		}
	}
	if !strings.Contains(section, "    "+path.By+"\n") {
		t.Errorf("docs/records/results.md does not name %q", path.By)
	}
}

// TestCheck runs every check on this machine. It changes nothing in the network namespace,
// where a route and a program are tried out.
func TestCheck(t *testing.T) {
	host := cc.NewHost(ledger.By{Owner: "test"})
	before := namespaceState(t)
	r, err := Check(Options{Path: Paths()["lossy-lfn"], CC: host, Algorithms: []string{"lh_haul"}, Sandbox: func() error { return nil }})
	nettest.Must(t, err)
	// A second name means longhaul's algorithm, which has one line.
	if p, ok := r.Find("cc", "lh_haul"); ok {
		t.Errorf("longhaul's haul by its second name: %+v", p)
	}
	if p, ok := r.Find("cc", "haul"); !ok || strings.Contains(p.Why, "module") {
		t.Errorf("longhaul's haul: %+v", p)
	}
	if after := namespaceState(t); after != before {
		t.Errorf("the check changed the host from\n%s\nto\n%s", before, after)
	}
	names, err := host.Names()
	nettest.Must(t, err)
	for _, name := range names {
		if _, ok := r.Find("cc", name); !ok {
			t.Errorf("no line about %s", name)
		}
	}
	for _, p := range r.Parts {
		if p.State != Yes && p.Why == "" {
			t.Errorf("%s %s is %s without a reason", p.Feature, p.Name, p.State)
		}
		if (p.State == No || p.State == Limited) && p.Remedy == "" {
			t.Errorf("%s %s is %s without a remedy", p.Feature, p.Name, p.State)
		}
	}
	if _, err := Check(Options{Features: []string{"nosuch"}}); err == nil {
		t.Error("an unknown feature is no error")
	}
}

// namespaceState lists the devices, their queueing disciplines and the routes.
func namespaceState(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	links, err := netlink.LinkList()
	nettest.Must(t, err)
	for _, l := range links {
		qdiscs, err := netlink.QdiscList(l)
		nettest.Must(t, err)
		routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
		nettest.Must(t, err)
		fmt.Fprintf(&all, "%s %v %v\n%v\n", l.Attrs().Name, l.Attrs().Flags, qdiscs, routes)
	}
	return all.String()
}

// TestWidth holds that every line fits a terminal of 80 columns.
func TestWidth(t *testing.T) {
	c := &checker{Options: Options{Path: Path{RateBps: 20e6, RTT: units.Seconds(300e6), Loss: 0.1, MTU: 1500}}, feature: "cc"}
	long := strings.Repeat("words that say what is missing ", 8)
	for _, name := range []string{"haul", "bbr"} {
		c.add(Part{Name: name, State: No, Why: long, Remedy: long})
	}
	c.addCosts()
	var b strings.Builder
	r := Report{Kernel: "6.1.0-56-cloud-amd64", Path: c.Path, Parts: c.parts}
	nettest.Must(t, r.WriteText(&b))
	nettest.Must(t, r.WriteMissing(&b))
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
