package hostcheck

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// readSysctl returns the value of a sysctl like net.ipv4.tcp_sack; ok is false if it is
// not there, or not readable.
func (c *checker) readSysctl(name string) (value string, ok bool) {
	text, err := os.ReadFile(filepath.Join(c.root, "/proc/sys", strings.ReplaceAll(name, ".", "/")))
	return strings.TrimSpace(string(text)), err == nil
}

// readTriple returns a sysctl of three numbers.
func (c *checker) readTriple(name string) (t [3]int, ok bool) {
	value, ok := c.readSysctl(name)
	fields := strings.Fields(value)
	if !ok || len(fields) != len(t) {
		return t, false
	}
	for i, field := range fields {
		var err error
		if t[i], err = strconv.Atoi(field); err != nil {
			return t, false
		}
	}
	return t, true
}

// distribution is the Linux distribution of the host.
type distribution struct {
	family   family
	version  string // VERSION_ID of os-release(5)
	codename string
}

type family int

// The families whose packages the remedies name.
const (
	other family = iota
	debian
	ubuntu
	redHat
)

// distribution reads os-release(5).
func (c *checker) distribution() (d distribution) {
	text, err := os.ReadFile(filepath.Join(c.root, "/etc/os-release"))
	if err != nil {
		text, _ = os.ReadFile(filepath.Join(c.root, "/usr/lib/os-release"))
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = strings.Trim(value, `"'`)
	}
	d.version, d.codename = values["VERSION_ID"], values["VERSION_CODENAME"]
	for _, word := range strings.Fields(values["ID"] + " " + values["ID_LIKE"]) {
		switch word {
		case "ubuntu":
			d.family = ubuntu
		case "debian":
			d.family = debian
		case "rhel", "fedora", "centos":
			d.family = redHat
		default:
			continue
		}
		break
	}
	return d
}

// debianArchitectures are Debian's names of architectures that differ from Go's.
var debianArchitectures = map[string]string{"386": "686", "arm": "armmp", "ppc64le": "powerpc64le"}

// debianKernel is the package of Debian's kernel.
func debianKernel() string {
	arch := runtime.GOARCH
	if name := debianArchitectures[arch]; name != "" {
		arch = name
	}
	return "linux-image-" + arch
}

// moduleRemedy says how the running kernel gets a module.
func (c *checker) moduleRemedy(name string) string {
	switch c.distribution().family {
	case debian:
		return "boot the kernel of the package " + debianKernel() + ", which has the module " + name
	case ubuntu:
		return "apt install linux-modules-extra-$(uname -r), if it has " + name + ".ko; else boot the generic kernel"
	case redHat:
		return "install the package that dnf provides '*/" + name + ".ko*' names"
	}
	return "boot a kernel with the module " + name
}

// kernelRemedy says how the host gets a newer kernel.
func (c *checker) kernelRemedy() string {
	switch d := c.distribution(); {
	case d.family == debian && d.codename != "":
		return fmt.Sprintf("run a newer kernel: apt install -t %s-backports %s", d.codename, debianKernel())
	case d.family == ubuntu && d.version != "":
		return "run a newer kernel: apt install linux-generic-hwe-" + d.version
	case d.family == redHat:
		return "run the newest kernel of this release, or a newer release"
	}
	return "run a newer kernel"
}
