package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A bootable is a kernel ready to boot: files of the cache.
type bootable struct {
	kernel
	image   string // the image's package
	vmlinuz string
	base    string // its modules and the programs, as cpio
}

// prepare fetches a kernel and the programs, and makes the part of its initramfs that
// longhaul's own files do not change. It keeps both in the cache.
func prepare(ctx context.Context, cache string, k kernel) (*bootable, error) {
	x, err := openIndex(ctx, cache, k.archive, k.suite, k.arch)
	if err != nil {
		return nil, err
	}
	b := &bootable{kernel: k}
	if b.image, err = x.image(ctx, k.pack); err != nil {
		return nil, fmt.Errorf("find %s in Debian %s: %w", k.pack, k.suite, err)
	}
	// A cache of an earlier version of this program has other files.
	content := sha256.Sum256([]byte(strings.Join(slices.Concat(programs, applets, wanted), " ")))
	dir := filepath.Join(cache, "kernels", fmt.Sprintf("%s-%x", b.image, content[:4]))
	b.vmlinuz, b.base = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "base.cpio")
	if _, err := os.Stat(b.base); err == nil {
		return b, nil
	}
	work, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	unpacked, root := filepath.Join(work, "kernel"), filepath.Join(work, "root")
	if err := x.unpackKernel(ctx, b.image, unpacked); err != nil {
		return nil, err
	}
	if err := merged(root); err != nil {
		return nil, err
	}
	programIndex, err := openIndex(ctx, cache, "debian", userland, k.arch)
	if err != nil {
		return nil, err
	}
	if err := programIndex.unpackPrograms(ctx, root, programs...); err != nil {
		return nil, err
	}
	for _, dir := range []string{"usr/share", "usr/lib/systemd", "var"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return nil, err
		}
	}
	if err := copyModules(ctx, unpacked, root); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	images, err := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinu*"))
	if err != nil || len(images) != 1 {
		if images, err = filepath.Glob(filepath.Join(unpacked, "usr/lib/modules/*/vmlinuz")); err != nil || len(images) != 1 {
			return nil, fmt.Errorf("%s has no kernel where one is expected", b.image)
		}
	}
	if _, err := output(exec.CommandContext(ctx, "cp", images[0], b.vmlinuz)); err != nil {
		return nil, err
	}
	return b, archive(ctx, root, b.base)
}

// merged makes the top folders of a root file system, /bin as /usr/bin as Debian has
// it.
func merged(root string) error {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "proc", "sys", "dev", "tmp", "run", "etc", "root", "var", "src"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for _, name := range applets {
		if err := os.Symlink("busybox", filepath.Join(root, "usr/bin", name)); err != nil {
			return err
		}
	}
	return os.Symlink("dash", filepath.Join(root, "usr/bin/sh"))
}

// copyModules copies the wanted modules with those they need.
func copyModules(ctx context.Context, from, root string) error {
	trees, err := filepath.Glob(filepath.Join(from, "lib/modules/*"))
	if err != nil {
		return err
	}
	if len(trees) != 1 {
		if trees, err = filepath.Glob(filepath.Join(from, "usr/lib/modules/*")); err != nil || len(trees) != 1 {
			return fmt.Errorf("the kernel's packages have no folder of modules")
		}
	}
	version := filepath.Base(trees[0])
	// The packages come without it.
	if _, err := output(exec.CommandContext(ctx, "depmod", "-b", filepath.Dir(filepath.Dir(filepath.Dir(trees[0]))), version)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(trees[0], "modules.dep"))
	if err != nil {
		return err
	}
	needs := map[string][]string{}
	byName := map[string]string{}
	for line := range strings.Lines(string(text)) {
		file, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[file] = strings.Fields(rest)
		name, _, _ := strings.Cut(filepath.Base(file), ".ko")
		byName[strings.ReplaceAll(name, "-", "_")] = file
	}
	to := filepath.Join(root, "usr/lib/modules", version)
	done := map[string]bool{}
	for _, name := range wanted {
		file, ok := byName[name]
		if !ok {
			continue // built in, or not in this kernel: the checks tell
		}
		for _, f := range append([]string{file}, needs[file]...) {
			if done[f] {
				continue
			}
			done[f] = true
			if err := os.MkdirAll(filepath.Join(to, filepath.Dir(f)), 0o755); err != nil {
				return err
			}
			if _, err := output(exec.CommandContext(ctx, "cp", filepath.Join(trees[0], f), filepath.Join(to, f))); err != nil {
				return err
			}
		}
	}
	for _, list := range []string{"modules.builtin", "modules.order", "modules.builtin.modinfo"} {
		if _, err := os.Stat(filepath.Join(trees[0], list)); err != nil {
			continue
		}
		if _, err := output(exec.CommandContext(ctx, "cp", filepath.Join(trees[0], list), to)); err != nil {
			return err
		}
	}
	_, err = output(exec.CommandContext(ctx, "depmod", "-b", root, version))
	return err
}

// archive packs a folder as a cpio archive, which the kernel unpacks when it boots.
// It is not compressed: unpacking would take longer than copying.
func archive(ctx context.Context, root, file string) error {
	out, err := os.Create(file + ".new")
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, "sh", "-c", "find . -print0 | LC_ALL=C sort -z | cpio --null --create --format=newc --owner=0:0 --quiet")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("pack the initramfs: %w", err)
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// concatenate joins cpio archives: the kernel unpacks one after the other.
func concatenate(file string, parts ...string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, part := range parts {
		in, err := os.Open(part)
		if err != nil {
			return err
		}
		n, err := io.Copy(out, in)
		in.Close()
		if err != nil {
			return err
		}
		if _, err := out.Write(make([]byte, (4-n%4)%4)); err != nil {
			return err
		}
	}
	return out.Close()
}
