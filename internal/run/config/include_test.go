package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"longhaul/test/nettest"
)

// unpack writes the files that a text has, each after a line "-- NAME --", and returns the folder.
func unpack(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		nettest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		nettest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

func tunnelText(name string, port int) string {
	return fmt.Sprintf("  - {name: %s, listen: 127.0.0.1:%d, forward: h:1}\n", name, port)
}

func TestInclude(t *testing.T) {
	const all = "include: conf.d/*.yaml\n"
	for _, tt := range []struct {
		name    string
		files   map[string]string // by path
		prepare func(t *testing.T, dir string)
		tunnels string // names in their order, or
		mistake string // with DIR for the folder
	}{
		{"in the order of names", map[string]string{
			"main.yaml":      all + "tunnels:\n" + tunnelText("a", 1),
			"conf.d/20.yaml": "tunnels:\n" + tunnelText("c", 3),
			"conf.d/10.yaml": "tunnels:\n" + tunnelText("b", 2) + "drain_timeout: 5s\n",
		}, nil, "a b c", ""},
		{"no tunnel in the main file", map[string]string{
			"main.yaml":      all,
			"conf.d/10.yaml": "tunnels:\n" + tunnelText("a", 1),
			"conf.d/20.yaml": "tunnels:\n" + tunnelText("b", 2),
		}, nil, "a b", ""},
		{"an empty folder", map[string]string{"main.yaml": all + "tunnels:\n" + tunnelText("a", 1)},
			func(t *testing.T, dir string) { nettest.Must(t, os.Mkdir(filepath.Join(dir, "conf.d"), 0o755)) }, "a", ""},
		{"defaults of another file", map[string]string{
			"main.yaml":      all + "defaults: {max_flows: 9}\n",
			"conf.d/10.yaml": "tunnels:\n" + tunnelText("a", 1),
		}, nil, "a", ""},
		{"what editors and packages leave", map[string]string{
			"main.yaml":                  all,
			"conf.d/10.yaml":             "tunnels:\n" + tunnelText("a", 1),
			"conf.d/10.yaml~":            "bad",
			"conf.d/.10.yaml":            "bad",
			"conf.d/.10.yaml.swp":        "bad",
			"conf.d/10.yaml.dpkg-new":    "bad",
			"conf.d/10.yaml.rpmsave":     "bad",
			"conf.d/.#10.yaml":           "bad",
			"conf.d/.ansible_tmp1.yaml":  "bad",
			"conf.d/README":              "bad",
			"conf.d/sub.d/included.yaml": "bad",
		}, nil, "a", ""},
		{"as Kubernetes has them", map[string]string{
			"main.yaml":                   all,
			"conf.d/..2026_1/tunnel.yaml": "tunnels:\n" + tunnelText("a", 1),
		}, func(t *testing.T, dir string) {
			nettest.Must(t, os.Symlink("..2026_1", filepath.Join(dir, "conf.d/..data")))
			nettest.Must(t, os.Symlink("..data/tunnel.yaml", filepath.Join(dir, "conf.d/tunnel.yaml")))
		}, "a", ""},
		{"the main file's own folder, and twice", map[string]string{
			"main.yaml": "include: ['*.yaml', b.yaml]\ntunnels:\n" + tunnelText("a", 1),
			"b.yaml":    "tunnels:\n" + tunnelText("b", 2),
		}, nil, "a b", ""},

		{"a folder that is missing", map[string]string{"main.yaml": all + "tunnels:\n" + tunnelText("a", 1)}, nil, "",
			"DIR/main.yaml:1:10: the folder DIR/conf.d of include cannot be read: no such file or directory; make the folder, which may be empty, or remove the line"},
		{"a file that is missing", map[string]string{"main.yaml": "include: a.yaml\ntunnels:\n" + tunnelText("a", 1)}, nil, "",
			"DIR/a.yaml: cannot be read: no such file or directory; check the path and its permissions"},
		{"a link that leads nowhere", map[string]string{"main.yaml": all, "conf.d/b.yaml": "tunnels:\n" + tunnelText("a", 1)},
			func(t *testing.T, dir string) {
				nettest.Must(t, os.Symlink("none", filepath.Join(dir, "conf.d/a.yaml")))
			}, "",
			"DIR/conf.d/a.yaml: cannot be read: no such file or directory; try again, since it was there; or remove the link that leads nowhere"},
		{"a folder with such a name", map[string]string{"main.yaml": all, "conf.d/a.yaml/x": ""}, nil, "",
			"DIR/conf.d/a.yaml: cannot be read: is a directory; check the path and its permissions"},
		{"a pipe", map[string]string{"main.yaml": all, "conf.d/b.yaml": "tunnels:\n" + tunnelText("a", 1)},
			func(t *testing.T, dir string) {
				nettest.Must(t, unix.Mkfifo(filepath.Join(dir, "conf.d/a.yaml"), 0o644))
			}, "",
			"DIR/conf.d/a.yaml: cannot be read: it is no regular file; check the path and its permissions"},
		{"another ending", map[string]string{"main.yaml": "include: conf.d/*\n"}, nil, "",
			`DIR/main.yaml:1:10: include cannot be "conf.d/*": the names must end in .yaml or .yml; name files such as conf.d/*.yaml`},
		{"a pattern of folders", map[string]string{"main.yaml": "include: '*/a.yaml'\n"}, nil, "",
			`DIR/main.yaml:1:10: include cannot be "*/a.yaml": only the name of the file can be a pattern; name one folder, such as conf.d/*.yaml; give several as a list`},
		{"a malformed pattern", map[string]string{"main.yaml": "include: 'conf.d/[a.yaml'\n"}, nil, "",
			`DIR/main.yaml:1:10: include cannot be "conf.d/[a.yaml": the pattern is malformed; write * for any letters, such as conf.d/*.yaml`},
		{"a mapping", map[string]string{"main.yaml": "include: {a: b}\n"}, nil, "",
			"DIR/main.yaml:1:10: include must be a value or a list, not a mapping; write one value, or a list with a dash before each"},
		{"no value", map[string]string{"main.yaml": "include:\ntunnels:\n" + tunnelText("a", 1)}, nil, "",
			"DIR/main.yaml:1:1: include has no value; give it one, or remove the line"},
		{"a nested include", map[string]string{"main.yaml": all + "tunnels:\n" + tunnelText("a", 1), "conf.d/a.yaml": "include: b.yaml\n"}, nil, "",
			"DIR/conf.d/a.yaml:1:1: an included file cannot include others; name them in include of the main file"},
		{"no mapping", map[string]string{"main.yaml": all, "conf.d/a.yaml": "- {name: a}\n"}, nil, "",
			"DIR/conf.d/a.yaml:1:1: an included file must be a mapping, not a list; begin it with tunnels: and put a dash before each tunnel"},
		{"an empty file", map[string]string{"main.yaml": all, "conf.d/a.yaml": "# nothing\n"}, nil, "",
			"DIR/conf.d/a.yaml:1:1: the file is empty; remove it, or write tunnels into it"},
		{"tunnels that are no list", map[string]string{"main.yaml": all + "tunnels:\n" + tunnelText("a", 1), "conf.d/a.yaml": "tunnels: {name: a}\n"}, nil, "",
			"DIR/conf.d/a.yaml:1:10: tunnels must be a list, not a mapping; put a dash before each tunnel"},
		{"no tunnel at all", map[string]string{"main.yaml": all, "conf.d/a.yaml": "workers: 2\n"}, nil, "",
			"DIR/main.yaml:1:1: there are no tunnels; add a list with at least one tunnel: its name, listen and forward"},
		{"a key in two files", map[string]string{"main.yaml": all + "tunnels:\n" + tunnelText("a", 1), "conf.d/a.yaml": "workers: 2\n", "conf.d/b.yaml": "\nworkers: 3\n"}, nil, "",
			"DIR/conf.d/b.yaml:2:1: workers is set twice; remove one; the other is in DIR/conf.d/a.yaml on line 1"},
		{"a key of the main file again", map[string]string{"main.yaml": all + "workers: 1\ntunnels:\n" + tunnelText("a", 1), "conf.d/a.yaml": "workers: 2\n"}, nil, "",
			"DIR/conf.d/a.yaml:1:1: workers is set twice; remove one; the other is in DIR/main.yaml on line 2"},
		{"tunnels twice in a file", map[string]string{"main.yaml": all + "tunnels:\n" + tunnelText("a", 1), "conf.d/a.yaml": "tunnels:\n" + tunnelText("b", 2) + "tunnels:\n" + tunnelText("c", 3)}, nil, "",
			"DIR/conf.d/a.yaml:3:1: tunnels is set twice; remove one; the other is in DIR/main.yaml on line 2"},
		{"a name in two files", map[string]string{"main.yaml": all, "conf.d/a.yaml": "tunnels:\n" + tunnelText("a", 1), "conf.d/b.yaml": "tunnels:\n" + tunnelText("a", 2)}, nil, "",
			"DIR/conf.d/b.yaml:2:12: the name a is taken by the tunnel in DIR/conf.d/a.yaml on line 2; give each tunnel its own name"},
		{"an address in two files", map[string]string{"main.yaml": all + "tunnels:\n" + tunnelText("a", 1), "conf.d/b.yaml": "tunnels:\n" + tunnelText("b", 1)}, nil, "",
			"DIR/conf.d/b.yaml:2:23: 127.0.0.1:1 clashes with 127.0.0.1:1 of tunnel a in DIR/main.yaml on line 3; change one of them, or remove it"},
		{"mistakes in the order of the files", map[string]string{
			"main.yaml":     all + "drain_time: 1s\n",
			"conf.d/a.yaml": "\n\n\ntunnels:\n" + tunnelText("a", 0),
			"conf.d/b.yaml": "tunnels:\n" + tunnelText("b", 0),
		}, nil, "", "DIR/main.yaml:2:1: unknown key drain_time in the configuration; did you mean drain_timeout?\n" +
			"DIR/conf.d/a.yaml:5:23: port 0 is out of range; use a number from 1 to 65535\n" +
			"DIR/conf.d/b.yaml:2:23: port 0 is out of range; use a number from 1 to 65535"},
		{"a file above its bound", map[string]string{"main.yaml": all, "conf.d/a.yaml": strings.Repeat("#\n", maxFileBytes/2+1)}, nil, "",
			"DIR/conf.d/a.yaml:1:1: the file has 1048577 bytes, and at most 1048576 are read; check that this is a longhaul configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := unpack(t, tt.files)
			if tt.prepare != nil {
				tt.prepare(t, dir)
			}
			c, err := testLoader().Load(t.Context(), filepath.Join(dir, "main.yaml"))
			if tt.mistake != "" {
				if err == nil {
					t.Fatalf("loaded as %+v", c)
				}
				if diff := cmp.Diff(tt.mistake, strings.ReplaceAll(err.Error(), dir, "DIR")); diff != "" {
					t.Error(diff)
				}
				return
			}
			nettest.Must(t, err)
			var names []string
			for _, tunnel := range c.Tunnels {
				names = append(names, tunnel.Name)
			}
			if got := strings.Join(names, " "); got != tt.tunnels {
				t.Errorf("the tunnels are %s, want %s", got, tt.tunnels)
			}
			// The texts that it was read from give the same.
			nettest.Must(t, os.RemoveAll(dir))
			again, err := testLoader().ParseFiles(t.Context(), c.Files)
			nettest.Must(t, err)
			if differences(again) != differences(c) || !again.Files.Equal(c.Files) {
				t.Errorf("the texts give\n%s\nand not\n%s", differences(again), differences(c))
			}
		})
	}
}

// TestIncludeIsBounded holds the bounds of bounds.md: of the files, and of the bytes of all.
func TestIncludeIsBounded(t *testing.T) {
	files := map[string]string{"main.yaml": "include: conf.d/*.yaml\n"}
	for i := range maxIncludedFiles {
		files[fmt.Sprintf("conf.d/%04d.yaml", i)] = "tunnels:\n" + tunnelText(fmt.Sprintf("t%d", i), i+1)
	}
	dir := unpack(t, files)
	load := func() error {
		_, err := testLoader().Load(t.Context(), filepath.Join(dir, "main.yaml"))
		return err
	}
	nettest.Must(t, load())
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "conf.d/more.yaml"), []byte("tunnels:\n"+tunnelText("more", 9999)), 0o600))
	if err := load(); err == nil || !strings.HasSuffix(err.Error(), ": more than 1000 files are included; put the tunnels of several into one") {
		t.Errorf("one file more: %v", err)
	}
	filler := strings.Repeat("# filler\n", 100_000)
	dir = unpack(t, map[string]string{"main.yaml": "include: conf.d/*.yaml\n", "conf.d/1.yaml": filler, "conf.d/2.yaml": filler, "conf.d/3.yaml": filler, "conf.d/4.yaml": filler, "conf.d/5.yaml": filler})
	if err := load(); err == nil || !strings.HasSuffix(err.Error(), "conf.d/5.yaml: with this file the configuration has more than 4194304 bytes; make it shorter, or run a second relay") {
		t.Errorf("too many bytes: %v", err)
	}
}

// TestLongLine holds that a list that a template writes in one line loads, and that each item of it has
// its column.
func TestLongLine(t *testing.T) {
	var prefixes []string
	for i := range 10_000 {
		prefixes = append(prefixes, fmt.Sprintf("%q", fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)))
	}
	text := func() []byte {
		return []byte("tunnels: [{name: a, listen: '127.0.0.1:1', forward: 'h:1', allow: [" + strings.Join(prefixes, ", ") + "]}]\n")
	}
	c, err := testLoader().Parse(t.Context(), "f.yaml", text())
	nettest.Must(t, err)
	if n := len(c.Tunnels[0].Allow); n != len(prefixes) {
		t.Errorf("%d prefixes", n)
	}
	at := len(strings.Join(prefixes[:9999], ", ")) + len(", ") + strings.Index(string(text()), "allow: [") + len("allow: [") + 1
	prefixes[9999] = `"10.0.0.0/33"`
	_, err = testLoader().Parse(t.Context(), "f.yaml", text())
	if want := fmt.Sprintf("f.yaml:1:%d: ", at); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s…", err, want)
	}
}

func TestFilesOfAnImage(t *testing.T) {
	root := unpack(t, map[string]string{"etc/longhaul/conf.d/a.yaml": "tunnels:\n" + tunnelText("a", 1)})
	l := testLoader()
	l.Root = root
	c, err := l.Parse(t.Context(), "/etc/longhaul/longhaul.yaml", []byte("include: conf.d/*.yaml\n"))
	nettest.Must(t, err)
	if want := []string{"/etc/longhaul/longhaul.yaml", "/etc/longhaul/conf.d/a.yaml"}; !slices.Equal(c.Files.Paths(), want) {
		t.Errorf("read are %v", c.Files.Paths())
	}
	var none Errors
	if _, err := l.ParseFiles(t.Context(), nil); !errors.As(err, &none) {
		t.Errorf("no files: %v", err)
	}
}

// TestIncludePassesOver: files with the other of the two endings are named once, unless they are read elsewhere.
func TestIncludePassesOver(t *testing.T) {
	tunnels := "tunnels:\n" + tunnelText("a", 1)
	for include, want := range map[string]string{
		"conf.d/*.yaml":                     "include does not read x.yml, for another ending",
		"conf.d/*.yml":                      "include does not read y.yaml, for another ending",
		"[conf.d/*.yaml, conf.d/*.yml]":     "",
		"[conf.d/*.yaml, conf.d/x.yml]":     "",
		"conf.d/y*.yaml":                    "",
		"conf.d/y.yaml":                     "",
		"[more.d/*.yaml, conf.d/*.yaml]":    "include does not read 1.yml, 2.yml, 3.yml and others, for another ending | include does not read x.yml, for another ending",
		"[conf.d/*.yaml, more.d/none.yaml]": "DIR",
	} {
		dir := unpack(t, map[string]string{"main.yaml": "include: " + include + "\n" + tunnels, "conf.d/y.yaml": "tunnels:\n" + tunnelText("b", 2),
			"conf.d/x.yml": "tunnels:\n" + tunnelText("c", 3), "conf.d/.z.yml": "bad", "conf.d/x.yml~": "bad",
			"more.d/1.yml": "bad", "more.d/2.yml": "bad", "more.d/3.yml": "bad", "more.d/4.yml": "bad"})
		c, err := testLoader().Load(t.Context(), filepath.Join(dir, "main.yaml"))
		if want == "DIR" {
			if err == nil {
				t.Errorf("%s is taken", include)
			}
			continue
		}
		nettest.Must(t, err)
		var got []string
		for _, w := range c.Warnings {
			got = append(got, w.Problem)
		}
		all := strings.Join(got, " | ")
		for _, name := range []string{"1", "2", "3", "4"} { // in the order of the folder
			all = strings.ReplaceAll(all, name+".yml", "N.yml")
			want = strings.ReplaceAll(want, name+".yml", "N.yml")
		}
		if all != want {
			t.Errorf("%s warns %q, want %q", include, all, want)
		}
	}
}
