package hostcheck

import (
	"os"
	"path/filepath"
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

// distribution is a family of Linux distributions.
type distribution string

// The families whose packages the remedies name.
const (
	debian distribution = "debian"
	ubuntu distribution = "ubuntu"
	redHat distribution = "red hat"
)

// distribution reads the family from os-release(5); empty if it is another.
func (c *checker) distribution() distribution {
	text, err := os.ReadFile(filepath.Join(c.root, "/etc/os-release"))
	if err != nil {
		text, _ = os.ReadFile(filepath.Join(c.root, "/usr/lib/os-release"))
	}
	var words []string
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == "ID" || key == "ID_LIKE" {
			words = append(words, strings.Fields(strings.Trim(value, `"'`))...)
		}
	}
	for _, word := range words {
		switch word {
		case "ubuntu":
			return ubuntu
		case "debian":
			return debian
		case "rhel", "fedora", "centos":
			return redHat
		}
	}
	return ""
}

// moduleRemedy says how the running kernel gets a module.
func (c *checker) moduleRemedy(name string) string {
	switch c.distribution() {
	case debian:
		return "boot the kernel of the package linux-image-ARCH, which has the module " + name
	case ubuntu:
		return "apt install linux-modules-extra-$(uname -r), if it has " + name + ".ko; else boot the generic kernel"
	case redHat:
		return "install the package that dnf provides '*/" + name + ".ko*' names"
	}
	return "boot a kernel with the module " + name
}
