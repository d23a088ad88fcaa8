package peers

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/test/nettest"
)

// TestNewest unpacks a package from an archive on disk, and runs it with the loader and the C library
// that its dependency has.
func TestNewest(t *testing.T) {
	for program, debianPackage := range map[string]string{"apt-get": "apt", "apt-config": "apt", "dpkg-deb": "dpkg", "ldd": "libc-bin"} {
		nettest.RequireProgram(t, program, debianPackage)
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	cache, err := newestCache()
	nettest.Must(t, err)
	repository := t.TempDir()
	index := addPackage(t, repository, "peer", "2.0", "peer-libraries", func(root string) {
		place(t, "/usr/bin/env", filepath.Join(root, "usr/sbin/peer"))
	})
	index += addPackage(t, repository, "peer-libraries", "1.0", "", func(root string) {
		for _, library := range libraries(t, "/usr/bin/env") {
			place(t, library, filepath.Join(root, "usr/lib/machine", filepath.Base(library)))
		}
	})
	nettest.Must(t, os.WriteFile(filepath.Join(repository, "Packages"), []byte(index), 0o644))

	a, err := newArchive(t.Context(), cache, "deb [trusted=yes] copy:"+repository+" ./\n")
	nettest.Must(t, err)
	root := filepath.Join(cache, "peer")
	nettest.Must(t, a.unpack(t.Context(), root, "peer"))
	l, err := newest(t.Context(), "peer", "peer", "sh", "-c", "echo version 2.0")
	nettest.Must(t, err)
	if l.version != "2.0" || l.root != root || !strings.HasPrefix(l.argv[0], root) {
		t.Errorf("%+v", l)
	}

	if err := a.unpack(t.Context(), filepath.Join(cache, "nobody"), "nobody"); err == nil || !strings.Contains(err.Error(), "Unable to locate package nobody") {
		t.Errorf("a package that the archive has not: %v", err)
	}
	if _, err := newest(t.Context(), "nobody", "nobody"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "newest Debian package nobody") {
		t.Errorf("a program that is not unpacked: %v", err)
	}
	nettest.Must(t, os.RemoveAll(a.dir))
	left, err := os.ReadDir(cache)
	nettest.Must(t, err)
	if len(left) != 1 {
		t.Errorf("the cache has %v, want the package alone", left)
	}
}

// addPackage makes a package for an archive, and returns its entry in the index.
func addPackage(t *testing.T, repository, name, version, depends string, fill func(root string)) string {
	root := t.TempDir()
	nettest.Must(t, os.Chmod(root, 0o755))
	fill(root)
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n", name, version)
	if depends != "" {
		control += "Depends: " + depends + "\n"
	}
	control += "Description: for a test\n"
	nettest.Must(t, os.Mkdir(filepath.Join(root, "DEBIAN"), 0o755))
	nettest.Must(t, os.WriteFile(filepath.Join(root, "DEBIAN/control"), []byte(control), 0o644))
	file := filepath.Join(repository, name+".deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-Znone", "--build", root, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(file)
	nettest.Must(t, err)
	return fmt.Sprintf("%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n\n", control, name, len(content), sha256.Sum256(content))
}

// libraries are the loader and the shared libraries of a program.
func libraries(t *testing.T, program string) (files []string) {
	out, err := exec.Command("ldd", program).Output()
	nettest.Must(t, err)
	for line := range strings.Lines(string(out)) {
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "/") {
				files = append(files, word)
			}
		}
	}
	return files
}

func place(t *testing.T, from, to string) {
	nettest.Must(t, os.MkdirAll(filepath.Dir(to), 0o755))
	source, err := os.Open(from)
	nettest.Must(t, err)
	defer source.Close()
	file, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	nettest.Must(t, err)
	_, err = io.Copy(file, source)
	nettest.Must(t, errors.Join(err, file.Close()))
}
