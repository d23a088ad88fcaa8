package service

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const recordDir = "/var/lib/example-service"

// first and second are two versions of an installation: the second changes a
// file, leaves one out and adds one.
var (
	first = []File{
		{Path: "/usr/local/bin/program", Content: []byte("one"), Mode: 0o755, Vital: true},
		{Path: "/etc/systemd/system/program.service", Content: []byte("unit"), Mode: 0o644, Vital: true},
		{Path: "/etc/systemd/system/program.service.d/a.conf", Content: []byte("a"), Mode: 0o644, Why: "for a"},
		{Path: "/etc/program/program.yaml", Content: []byte("example"), Mode: 0o644, Seed: true},
		{Path: "/etc/systemd/system/wants/program.service", Link: "/etc/systemd/system/program.service", Seed: true},
	}
	second = []File{
		{Path: "/usr/local/bin/program", Content: []byte("two"), Mode: 0o755, Vital: true},
		first[1], first[3], first[4],
		{Path: "/etc/systemd/system/program.service.d/b.conf", Content: []byte("b"), Mode: 0o644},
	}
	private = []string{"/etc/program"}
)

func newHost(t *testing.T) Host {
	t.Helper()
	return Host{Root: t.TempDir(), Dir: recordDir}
}

// tree is everything below the root: what a path is and holds. Directories
// are left out unless they are all there is.
func tree(t *testing.T, h Host) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(h.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == h.Root {
			return err
		}
		name := strings.TrimPrefix(path, h.Root)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			found[name] = "directory " + info.Mode().String()
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			found[name] = "-> " + to
			return err
		case name == recordDir+"/"+recordName:
			found[name] = "record" // has the time
		default:
			b, err := os.ReadFile(path)
			found[name] = info.Mode().String() + " " + string(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func install(t *testing.T, h Host, files []File) *Plan {
	t.Helper()
	p, err := h.Plan(Wanted{Files: files})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(); err != nil {
		t.Fatal(err)
	}
	return p
}

func uninstall(t *testing.T, h Host, purge bool) *Removal {
	t.Helper()
	r, err := h.Load()
	if err != nil || r == nil {
		t.Fatalf("no record: %v", err)
	}
	m, err := h.Removal(r, purge, private, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Apply(); err != nil {
		t.Fatal(err)
	}
	return m
}

func write(t *testing.T, h Host, path, content string) {
	t.Helper()
	path = h.Root + path
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func kept(steps []Step) (paths []string) {
	for _, s := range steps {
		if s.Verb == Keep {
			paths = append(paths, s.Path+": "+s.Why)
		}
	}
	return paths
}

func TestUninstallLeavesNothing(t *testing.T) {
	h := newHost(t)
	install(t, h, first)
	for path, want := range map[string]string{
		"/usr/local/bin/program":                       "-rwxr-xr-x one",
		"/etc/systemd/system/program.service.d/a.conf": "-rw-r--r-- a",
		"/etc/systemd/system/wants/program.service":    "-> /etc/systemd/system/program.service",
		"/etc/program": "directory drwxr-xr-x",
	} {
		if got := tree(t, h)[path]; got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	again, err := h.Plan(Wanted{Files: first})
	if err != nil || again.Changes() {
		t.Errorf("a second installation would change %v, %v", again.Steps, err)
	}
	uninstall(t, h, false)
	if left := tree(t, h); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWhatOthersMadeIsLeftAlone(t *testing.T) {
	for _, f := range first[:2] {
		h := newHost(t)
		write(t, h, f.Path, "somebody's")
		before := tree(t, h)
		_, err := h.Plan(Wanted{Files: first})
		var conflict *ErrConflict
		if !errors.As(err, &conflict) || conflict.Path != f.Path || conflict.Changed {
			t.Errorf("%s in the way gives %v", f.Path, err)
		}
		if diff := cmp.Diff(before, tree(t, h)); diff != "" {
			t.Error(diff)
		}
	}

	h := newHost(t)
	write(t, h, "/etc/program/program.yaml", "mine")
	write(t, h, "/usr/local/bin/other", "other")
	before := tree(t, h)
	p := install(t, h, first)
	if got, want := kept(p.Steps), []string{"/etc/program/program.yaml: existed already"}; !slices.Equal(got, want) {
		t.Errorf("kept %q, want %q", got, want)
	}
	uninstall(t, h, true)
	if diff := cmp.Diff(before, tree(t, h)); diff != "" {
		t.Errorf("uninstall has not put everything back:\n%s", diff)
	}
}

// TestWhatIsAlreadyAsItShouldBe is not recorded: it is somebody's.
func TestWhatIsAlreadyAsItShouldBe(t *testing.T) {
	h := newHost(t)
	write(t, h, first[1].Path, "unit")
	before := tree(t, h)
	install(t, h, first)
	uninstall(t, h, true)
	if diff := cmp.Diff(before, tree(t, h)); diff != "" {
		t.Error(diff)
	}
}

func TestWhatWasChangedSinceIsKept(t *testing.T) {
	h := newHost(t)
	install(t, h, first)
	write(t, h, "/etc/program/program.yaml", "edited")
	write(t, h, "/etc/program/key", "secret")
	write(t, h, "/etc/systemd/system/program.service.d/a.conf", "edited")

	// A new version leaves them alone, also what it no longer has.
	p := install(t, h, second)
	want := []string{"/etc/program/program.yaml: changed since it was installed", "/etc/systemd/system/program.service.d/a.conf: changed since it was installed"}
	if got := kept(p.Steps); !slices.Equal(got, want) {
		t.Errorf("the second version kept %q, want %q", got, want)
	}
	m := uninstall(t, h, false)
	got := kept(m.Steps)
	slices.Sort(got)
	want = append(want, "/etc/program: has key")
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("uninstall kept %q, want %q", got, want)
	}
	left := tree(t, h)
	for _, path := range []string{"/etc/program/program.yaml", "/etc/program/key", "/etc/systemd/system/program.service.d/a.conf"} {
		if left[path] == "" {
			t.Errorf("%s is gone", path)
		}
	}
	if left["/usr/local/bin/program"] != "" || left["/usr"] != "" {
		t.Errorf("left behind: %v", left)
	}
	uninstall(t, h, true)
	if left := tree(t, h); len(left) > 0 {
		t.Errorf("a purge leaves %v", left)
	}
}

func TestWhatIsToBeKept(t *testing.T) {
	h := newHost(t)
	install(t, h, first)
	r, err := h.Load()
	if err != nil {
		t.Fatal(err)
	}
	m, err := h.Removal(r, false, private, []string{"/etc/program/program.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Apply(); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, h); left["/etc/program/program.yaml"] == "" || left["/usr/local/bin/program"] != "" {
		t.Errorf("left are %v", left)
	}
	uninstall(t, h, false)
	if left := tree(t, h); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestInterruptedBeforeTheRecord(t *testing.T) {
	h := newHost(t)
	if err := os.MkdirAll(h.Root+"/var/lib", 0o755); err != nil {
		t.Fatal(err)
	}
	before := tree(t, h)
	write(t, h, recordDir+"/"+recordName+".new", "{")
	if err := h.Clear(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree(t, h)); diff != "" {
		t.Error(diff)
	}
}

func TestAChangedProgramIsNotReplaced(t *testing.T) {
	h := newHost(t)
	install(t, h, first)
	write(t, h, "/usr/local/bin/program", "by hand")
	_, err := h.Plan(Wanted{Files: second})
	var conflict *ErrConflict
	if !errors.As(err, &conflict) || !conflict.Changed {
		t.Errorf("got %v", err)
	}
}

func TestDirectoriesThatOthersHaveComeToUse(t *testing.T) {
	h := newHost(t)
	install(t, h, first)
	write(t, h, "/usr/local/bin/other", "other")
	if got := kept(uninstall(t, h, false).Steps); got != nil {
		t.Errorf("named %q", got)
	}
	want := map[string]string{"/usr": "directory drwxr-xr-x", "/usr/local": "directory drwxr-xr-x", "/usr/local/bin": "directory drwxr-xr-x", "/usr/local/bin/other": "-rw-r--r-- other"}
	if diff := cmp.Diff(want, tree(t, h)); diff != "" {
		t.Error(diff)
	}
}

// interrupt carries out as much of a plan as fits before its n-th change, and
// leaves that one half done. It says whether the plan has that many.
func interrupt(t *testing.T, p *Plan, n int) bool {
	t.Helper()
	unlock, err := p.host.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := p.host.save(&p.during); err != nil {
		t.Fatal(err)
	}
	var changes []func() error
	for _, dir := range p.dirs {
		changes = append(changes, func() error { return os.MkdirAll(p.host.Root+dir, 0o755) })
	}
	for _, f := range p.files {
		changes = append(changes,
			func() error { return os.WriteFile(partial(p.host.Root+f.Path), []byte("hal"), 0o644) },
			func() error { return p.host.write(f) })
	}
	for _, path := range p.drop {
		changes = append(changes, func() error { return os.Remove(p.host.Root + path) })
	}
	for _, change := range changes[:min(n, len(changes))] {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	return n <= len(changes)
}

// TestInterruptedAnywhere stops an installation, and the change from one to
// another, after every single step: then both installing and removing must
// end as if nothing had happened.
func TestInterruptedAnywhere(t *testing.T) {
	clean := newHost(t)
	install(t, clean, first)
	wantFirst := tree(t, clean)
	install(t, clean, second)
	wantSecond := tree(t, clean)

	for _, step := range []struct {
		name   string
		before []File
		files  []File
		want   map[string]string
	}{{"first", nil, first, wantFirst}, {"second", first, second, wantSecond}} {
		for n := 0; ; n++ {
			last := false
			for _, remove := range []bool{false, true} {
				h := newHost(t)
				if step.before != nil {
					install(t, h, step.before)
				}
				p, err := h.Plan(Wanted{Files: step.files})
				if err != nil {
					t.Fatal(err)
				}
				last = !interrupt(t, p, n)
				if r, err := h.Load(); err != nil || r.Complete {
					t.Fatalf("the record does not say that it is incomplete: %v", err)
				}
				if remove {
					uninstall(t, h, false)
					if left := tree(t, h); len(left) > 0 {
						t.Errorf("%s, %d steps: uninstall leaves %v", step.name, n, left)
					}
					continue
				}
				install(t, h, step.files)
				if diff := cmp.Diff(step.want, tree(t, h)); diff != "" {
					t.Errorf("%s, %d steps: installing again gives\n%s", step.name, n, diff)
				}
				if r, err := h.Load(); err != nil || !r.Complete {
					t.Errorf("%s, %d steps: the record is not complete: %v", step.name, n, err)
				}
			}
			if last {
				break
			}
		}
	}
}

func TestLinksLeadNowhereElse(t *testing.T) {
	h := newHost(t)
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, h.Root+"/etc"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Plan(Wanted{Files: first}); err == nil || !strings.Contains(err.Error(), "leads out of") {
		t.Errorf("got %v", err)
	}
	// Inside the image they are as good as directories.
	h = newHost(t)
	if err := os.MkdirAll(h.Root+"/usr/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/etc", h.Root+"/etc"); err != nil {
		t.Fatal(err)
	}
	install(t, h, first)
	if b, err := os.ReadFile(h.Root + "/usr/etc/program/program.yaml"); err != nil || string(b) != "example" {
		t.Errorf("want the example installed, got %q, %v", b, err)
	}
}

func TestDamagedRecords(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "{", "a relative path": `{"entries":[{"path":"etc"}]}`, "the root": `{"entries":[{"path":"/"}]}`,
		"a path that goes up": `{"entries":[{"path":"/etc/../usr"}]}`,
	} {
		h := newHost(t)
		write(t, h, recordDir+"/"+recordName, text)
		if _, err := h.Load(); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%s gives %v", name, err)
		}
		if _, err := h.Plan(Wanted{Files: first}); err == nil {
			t.Errorf("%s: something is planned on it", name)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(`{"complete":true,"entries":[{"path":"/etc/a","digests":["link:b"]},{"path":"/etc"}]}`)
	h := Host{Root: f.TempDir(), Dir: recordDir}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRecord([]byte(text))
		if err != nil {
			return
		}
		for _, e := range r.Entries {
			if at, err := h.place(e.Path); err == nil && !strings.HasPrefix(at, h.Root+"/") {
				t.Errorf("%q is at %q", e.Path, at)
			}
		}
	})
}
