package peers

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// newestSuites are the suites of Debian whose newest version of a package is taken.
var newestSuites = []string{"stable", "stable-backports", "unstable"}

// The packages of the newest peers, with those that their packages do not depend on. They lie below the
// user's cache directory (XDG_CACHE_HOME), each unpacked with its own libraries, and nothing is installed.
var newestPackages = [][]string{{"haproxy"}, {"nginx", "libnginx-mod-stream"}, {"socat"}}

// located is where a program is, and how it is run.
type located struct {
	argv    []string // to which its arguments are added
	version string
	root    string // below which its files are; empty: the host's
}

// locate finds a program of a Debian package, and asks it for its version.
type locate func(ctx context.Context, name, debianPackage string, versionArgs ...string) (located, error)

// newest locates what FetchNewest has unpacked. Its loader runs it with its own libraries.
func newest(ctx context.Context, name, debianPackage string, versionArgs ...string) (located, error) {
	cache, err := newestCache()
	if err != nil {
		return located{}, err
	}
	l := located{root: filepath.Join(cache, debianPackage)}
	missing := fmt.Errorf("%w (newest Debian package %s, unpacked in %s; a run that reaches Debian's archive fetches it)", ErrMissing, debianPackage, l.root)
	first := func(patterns ...string) string {
		for _, p := range patterns {
			if found, _ := filepath.Glob(filepath.Join(l.root, p)); len(found) > 0 {
				return found[0]
			}
		}
		return ""
	}
	loader := first("usr/lib/*/ld-linux*.so.*", "usr/lib/*/ld64.so.*", "lib/*/ld-linux*.so.*", "lib/*/ld64.so.*")
	program := first("usr/sbin/"+name, "usr/bin/"+name)
	if loader == "" || program == "" {
		return l, missing
	}
	libraries := filepath.Dir(loader)
	if other := filepath.Join(l.root, "usr/lib", filepath.Base(libraries)); other != libraries {
		libraries += ":" + other
	}
	l.argv = []string{loader, "--library-path", libraries, program}
	l.version, err = askVersion(ctx, l.argv, versionArgs...)
	return l, err
}

func newestCache() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "longhaul", "peers"), err
}

// FetchNewest unpacks the newest peers that Debian's archive has, as far as they are not in the cache yet.
// It writes a line for each that it cannot get. A network namespace without a network needs this before.
func FetchNewest(ctx context.Context, progress io.Writer) {
	cache, err := newestCache()
	var a *archive
	for _, packages := range newestPackages {
		root := filepath.Join(cache, packages[0])
		if _, absent := os.Stat(root); absent == nil {
			continue
		}
		if a == nil && err == nil {
			fmt.Fprintf(progress, "fetching the newest peers from Debian's archive into %s\n", cache)
			a, err = openArchive(ctx, cache)
			if a != nil {
				defer os.RemoveAll(a.dir)
			}
		}
		failed := err
		if failed == nil {
			failed = a.unpack(ctx, root, packages...)
		}
		if failed != nil {
			fmt.Fprintf(progress, "the newest Debian package %s is not to be had: %v\n", packages[0], failed)
		}
	}
}

// archive is a package archive with a state of its own, apart from the host's.
type archive struct {
	dir string // of that state
}

// openArchive reads the index of Debian's archive from the mirror that this host uses.
func openArchive(ctx context.Context, cache string) (*archive, error) {
	mirror, err := debianMirror(ctx)
	if err != nil {
		return nil, err
	}
	var sources strings.Builder
	for _, suite := range newestSuites {
		fmt.Fprintf(&sources, "deb %s %s main\n", mirror, suite)
	}
	return newArchive(ctx, cache, sources.String())
}

// newArchive makes the state of an archive in dir and reads its index. sources is a list as in
// sources.list(5).
func newArchive(ctx context.Context, dir, sources string) (*archive, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	state, err := os.MkdirTemp(dir, "apt-")
	if err != nil {
		return nil, err
	}
	a := &archive{state}
	if err = a.prepare(ctx, sources); err == nil {
		_, err = a.apt(ctx, "update")
	}
	if err != nil {
		os.RemoveAll(state)
		return nil, err
	}
	return a, nil
}

// prepare writes the configuration: this host's ways to reach archives, such as proxies, and nothing
// else of it.
func (a *archive) prepare(ctx context.Context, sources string) error {
	acquire, err := output(exec.CommandContext(ctx, "apt-config", "dump", "Acquire"))
	if err != nil {
		return err
	}
	var config strings.Builder
	for line := range strings.Lines(acquire) {
		if !strings.HasPrefix(line, "Acquire::IndexTargets") {
			config.WriteString(line)
		}
	}
	for option, value := range map[string]string{
		"Dir::State": a.dir, "Dir::State::status": filepath.Join(a.dir, "status"), "Dir::Cache": a.dir,
		"Dir::Etc": a.dir, "Dir::Etc::parts": "-", "Dir::Etc::sourceparts": "-", "Dir::Etc::preferencesparts": "-",
		"APT::Sandbox::User": "root", "Debug::NoLocking": "true", "APT::Install-Recommends": "false",
	} {
		fmt.Fprintf(&config, "%s %q;\n", option, value)
	}
	for name, text := range map[string]string{"conf": config.String(), "status": "", "sources.list": sources} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(a.dir, "lists", "partial"), 0o755)
}

func (a *archive) apt(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-o", "APT::Get::Assume-Yes=true"}, args...)...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "conf"), "LC_ALL=C")
	return output(cmd)
}

// unpack puts packages, with all that they depend on, into a directory.
func (a *archive) unpack(ctx context.Context, root string, packages ...string) error {
	archives, unpacked := filepath.Join(a.dir, "archives"), root+".new"
	for _, dir := range []string{archives, unpacked} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return err
	}
	if _, err := a.apt(ctx, append([]string{"--download-only", "install"}, packages...)...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil || len(files) == 0 {
		return cmp.Or(err, errors.New("apt-get has fetched no package"))
	}
	for _, file := range files {
		if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", file, unpacked)); err != nil {
			return err
		}
	}
	return os.Rename(unpacked, root)
}

// debianKeys are the keys of Debian's archive, in the package debian-archive-keyring.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// debianMirror is the mirror of this host's Debian, as an entry of a sources list names it.
func debianMirror(ctx context.Context) (string, error) {
	codename, err := releaseName()
	if err != nil {
		return "", err
	}
	targets, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(targets) {
		if release, uri, _ := strings.Cut(strings.TrimSpace(line), " "); release == codename {
			return fmt.Sprintf("[signed-by=%s] %s", debianKeys, uri), nil
		}
	}
	return "", fmt.Errorf("apt has no source for Debian %s (see sources.list(5))", codename)
}

// releaseName is the code name of this host's Debian.
func releaseName() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	values := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), "=")
		values[key] = strings.Trim(value, `"`)
	}
	if values["ID"] != "debian" {
		return "", fmt.Errorf("this host has %s, not Debian", cmp.Or(values["PRETTY_NAME"], "an unknown system"))
	}
	return values["VERSION_CODENAME"], nil
}

// output is what a command prints. Its error has the last line of what it says.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(stderr.String())
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, said[strings.LastIndexByte(said, '\n')+1:])
	}
	return stdout.String(), nil
}
