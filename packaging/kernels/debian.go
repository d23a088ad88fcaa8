package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// userland is the suite of the programs in the guests.
const userland = "bookworm"

// Programs in the guests, Debian packages.
var programs = []string{"dash", "busybox-static", "kmod", "iproute2", "iperf3", "nftables", "ipvsadm"}

// applets are programs that busybox is in the guests.
var applets = strings.Fields(`awk cat chmod cp cut date dd dmesg env false grep head id kill ls mkdir mount mv nc od
	pidof ping ps rm rmdir sed seq sha256sum sleep sort stat sync sysctl tail tee test timeout tr true umount uname wc xargs`)

// An index is a package index of its own, apart from this host's.
type index struct {
	dir  string
	arch string
}

// openIndex fetches the index of a suite, unless a copy of today is there.
func openIndex(ctx context.Context, cache, archive, suite, arch string) (*index, error) {
	x := &index{dir: filepath.Join(cache, "index", suite+"-"+arch), arch: arch}
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(x.dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	mirror, err := mirror(ctx, archive)
	if err != nil {
		return nil, err
	}
	source := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n", mirror, suite)
	if err := os.WriteFile(filepath.Join(x.dir, "x.sources"), []byte(source), 0o644); err != nil {
		return nil, err
	}
	// No package is installed: apt then resolves every dependency.
	if err := os.WriteFile(filepath.Join(x.dir, "status"), nil, 0o644); err != nil {
		return nil, err
	}
	fetched := filepath.Join(x.dir, "fetched")
	if is, err := os.Stat(fetched); err == nil && is.ModTime().After(time.Now().Add(-24*time.Hour)) {
		return x, nil
	}
	// A failed index is a warning to apt, which goes on without it.
	if _, err := x.apt(ctx, "apt-get", "-qq", "--error-on=any", "update"); err != nil {
		return nil, fmt.Errorf("fetch the package index of Debian %s, %s: %w", suite, arch, err)
	}
	return x, os.WriteFile(fetched, nil, 0o644)
}

// mirror is where this host gets its Debian packages.
func mirror(ctx context.Context, archive string) (string, error) {
	out, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"))
	if err != nil {
		return "", fmt.Errorf("find this host's Debian mirror: %w", err)
	}
	for _, site := range strings.Fields(out) {
		if strings.HasSuffix(strings.TrimSuffix(site, "/"), "/"+archive) {
			return site, nil
		}
	}
	return "", fmt.Errorf("apt has no source that ends in /%s: add Debian's to /etc/apt/sources.list.d", archive)
}

func (x *index) apt(ctx context.Context, program string, args ...string) (string, error) {
	at := func(name string) string { return filepath.Join(x.dir, name) }
	options := []string{
		"-o", "Dir::Etc::sourcelist=" + at("x.sources"), "-o", "Dir::Etc::sourceparts=/nonexistent",
		"-o", "Dir::State::lists=" + at("lists"), "-o", "Dir::State::status=" + at("status"), "-o", "Dir::Cache=" + at("cache"),
		"-o", "APT::Architecture=" + x.arch, "-o", "APT::Architectures::=" + x.arch, "-o", "APT::Sandbox::User=",
	}
	cmd := exec.CommandContext(ctx, program, append(options, args...)...)
	cmd.Dir = at("cache/archives") // where apt-get download writes
	return output(cmd)
}

// image returns the image package that a metapackage stands for.
func (x *index) image(ctx context.Context, pack string) (string, error) {
	out, err := x.apt(ctx, "apt-cache", "depends", pack)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + name, nil
		}
	}
	return pack, nil
}

// unpackKernel fetches an image and unpacks it. Since Linux 7 Debian splits an image
// into two packages.
func (x *index) unpackKernel(ctx context.Context, image, to string) error {
	version := strings.TrimPrefix(image, "linux-image-")
	out, err := x.apt(ctx, "apt-cache", "pkgnames", "linux-")
	if err != nil {
		return err
	}
	known := strings.Fields(out)
	packs := []string{image}
	for _, part := range []string{"linux-binary-" + version, "linux-modules-" + version} {
		if slices.Contains(known, part) {
			packs = append(packs, part)
		}
	}
	// Without what they depend on: a script that makes an initramfs, for one.
	if _, err := x.apt(ctx, "apt-get", append([]string{"-qq", "download"}, packs...)...); err != nil {
		return fmt.Errorf("fetch %s: %w", image, err)
	}
	return x.unpack(ctx, to, func(file string) bool {
		return slices.ContainsFunc(packs, func(p string) bool { return strings.HasPrefix(file, p+"_") })
	})
}

// unpackPrograms fetches packages with their dependencies and unpacks them.
func (x *index) unpackPrograms(ctx context.Context, to string, packs ...string) error {
	args := append([]string{"-y", "-qq", "--download-only", "--no-install-recommends", "install"}, packs...)
	if _, err := x.apt(ctx, "apt-get", args...); err != nil {
		return fmt.Errorf("fetch %s: %w", strings.Join(packs, ", "), err)
	}
	return x.unpack(ctx, to, func(file string) bool { return !strings.HasPrefix(file, "linux-") })
}

func (x *index) unpack(ctx context.Context, to string, wanted func(file string) bool) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	archives := filepath.Join(x.dir, "cache/archives")
	files, err := os.ReadDir(archives)
	if err != nil {
		return err
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".deb") || !wanted(f.Name()) {
			continue
		}
		// dpkg-deb --extract would put folders in place of the links of a merged /usr.
		const extract = `dpkg-deb --fsys-tarfile "$0" | tar --extract --keep-directory-symlink --directory "$1"`
		if _, err := output(exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", extract, filepath.Join(archives, f.Name()), to)); err != nil {
			return fmt.Errorf("unpack %s: %w", f.Name(), err)
		}
	}
	return nil
}

// output runs a command. Its error has what the command printed.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
