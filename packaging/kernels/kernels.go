package main

import (
	"slices"
	"strings"

	"longhaul/internal/words/ccnames"
)

// A kernel is one of Debian's, as its package index has it.
type kernel struct {
	name    string
	arch    string // Debian's name
	archive string // "debian" or "debian-security"
	suite   string
	// pack is the package: a metapackage of the newest, or an image's own.
	pack string
	// lacks are the checks that must end as unsupported.
	lacks []string
	// checks that run there, if not all.
	only []string
	ci   bool // one of the two that CI boots
	// byName: it boots only where it is named, since it needs QEMU 10 (see
	// guest/emulator.go).
	byName bool
}

// The checks of longhaul on a kernel, in the order in which they run.
var allChecks = slices.Concat(
	[]string{"host", "relay", "measure", "route", "doctor", "mss"}, ccnames.Own(), []string{"demo", "tests"})

// Checks that run only when they are named: they take minutes and depend on speed.
var slowChecks = []string{"mitre", "diagnosis", "figures", "ipvs"}

// Debian builds its kernels for s390x for the z10, for which BPF has no compiler
// (CONFIG_BPF_JIT), and so no struct_ops.
var withoutStructOps = ccnames.Own()

// Before Linux 6.0 BPF cannot set a connection's pacing.
var withoutPacing = slices.DeleteFunc(ccnames.Own(), func(name string) bool { return !ccnames.Paces(name) })

var kernels = []kernel{
	{name: "5.10", arch: "amd64", archive: "debian-security", suite: "bullseye-security", pack: "linux-image-cloud-amd64",
		lacks: withoutPacing},
	{name: "6.1", arch: "amd64", archive: "debian-security", suite: "bookworm-security", pack: "linux-image-cloud-amd64", ci: true},
	{name: "6.12-deb12", arch: "amd64", archive: "debian-security", suite: "bookworm-security", pack: "linux-image-6.12-cloud-amd64"},
	{name: "6.12", arch: "amd64", archive: "debian-security", suite: "trixie-security", pack: "linux-image-cloud-amd64"},
	{name: "6.18", arch: "amd64", archive: "debian", suite: "trixie-backports", pack: "linux-image-6.18.15+deb13-cloud-amd64"},
	{name: "sid", arch: "amd64", archive: "debian", suite: "sid", pack: "linux-image-cloud-amd64"},
	{name: "backports", arch: "amd64", archive: "debian", suite: "trixie-backports", pack: "linux-image-cloud-amd64", ci: true},
	{name: "arm64", arch: "arm64", archive: "debian", suite: "trixie", pack: "linux-image-cloud-arm64"},
	{name: "s390x", arch: "s390x", archive: "debian", suite: "bookworm", pack: "linux-image-s390x", lacks: withoutStructOps},
	{name: "s390x-sid", arch: "s390x", archive: "debian", suite: "sid", pack: "linux-image-s390x", lacks: withoutStructOps, byName: true},
}

// machines are the emulated machines by Debian's name of the architecture.
var machines = map[string]struct {
	goarch, qemu, console, pack string
	args                        []string
}{
	"amd64": {"amd64", "qemu-system-x86_64", "ttyS0", "qemu-system-x86", []string{"-cpu", "max"}},
	"arm64": {"arm64", "qemu-system-aarch64", "ttyAMA0", "qemu-system-arm", []string{"-machine", "virt", "-cpu", "max,pauth-impdef=on"}},
	"s390x": {"s390x", "qemu-system-s390x", "ttysclp0", "qemu-system-misc", []string{"-cpu", "max"}},
}

// wanted are the kernel modules that longhaul, the tests or the path of the check
// figures need, with what these need. They load by themselves, as on a real host.
var wanted = strings.Fields(`tun veth dummy
	sch_fq sch_codel sch_fq_codel sch_pie sch_netem sch_tbf sch_ingress cls_bpf cls_matchall cls_u32 act_bpf act_gact act_mirred
	tcp_bbr tcp_hybla tcp_illinois tcp_htcp tcp_vegas tcp_westwood tcp_dctcp
	inet_diag tcp_diag unix_diag af_packet ipv6
	nf_tables nft_tproxy nft_socket nft_ct nf_tproxy_ipv4 nf_tproxy_ipv6 nft_fib_inet nft_limit nft_objref nft_counter nft_chain_nat nft_masq nft_reject_inet tls
	bridge ip_vs ip_vs_mh ip_vs_sh`)

// checks returns those of the planned checks that run on a kernel.
func (k kernel) checks(planned []string) []string {
	if k.only == nil {
		return planned
	}
	return slices.DeleteFunc(slices.Clone(planned), func(c string) bool { return !slices.Contains(k.only, c) })
}
