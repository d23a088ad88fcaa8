package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// Each archive in testdata is of one subject. A case is two entries of it: NAME.yaml with the file
// and NAME.want with what loading it gives. An entry NAME.quoted in place of NAME.yaml is a Go
// string, for bytes that an editor would not keep.
type fileCase struct {
	archive string // path
	subject string
	name    string
	yaml    []byte
	want    string
}

// file is the name of the case's file in messages.
func (c fileCase) file() string { return c.name + ".yaml" }

func (c fileCase) load(t *testing.T) (*Config, error) {
	t.Helper()
	loaded, err := testLoader().Parse(t.Context(), c.file(), c.yaml)
	if err == nil {
		loaded.Files = nil // the archive has them
	}
	return loaded, err
}

// check compares with what the archive has, or writes it there.
func (c fileCase) check(t *testing.T, got string) {
	t.Helper()
	if !*update {
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s of %s differs (-want +got):\n%s", c.name, c.archive, diff)
		}
		return
	}
	a, err := txtar.ParseFile(c.archive)
	if err != nil {
		t.Fatal(err)
	}
	want := txtar.File{Name: c.name + ".want", Data: []byte(got)}
	if i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == want.Name }); i >= 0 {
		a.Files[i] = want
	} else {
		i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return strings.HasPrefix(f.Name, c.name+".") })
		a.Files = slices.Insert(a.Files, i+1, want)
	}
	if err := os.WriteFile(c.archive, txtar.Format(a), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fileCases are those of the archives in a directory of testdata.
func fileCases(t testing.TB, dir string) []fileCase {
	t.Helper()
	archives, err := filepath.Glob("testdata/" + dir + "/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives in testdata/%s", dir)
	}
	var cases []fileCase
	names := map[string]bool{}
	for _, archive := range archives {
		a, err := txtar.ParseFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		subject := strings.TrimSuffix(filepath.Base(archive), ".txtar")
		for _, f := range a.Files {
			name, kind, _ := strings.Cut(f.Name, ".")
			if kind == "want" {
				last := len(cases) - 1
				if last < 0 || cases[last].archive != archive || cases[last].name != name || cases[last].want != "" {
					t.Fatalf("%s: %s does not follow its file", archive, f.Name)
				}
				cases[last].want = string(f.Data)
				continue
			}
			if names[name] {
				t.Fatalf("%s: a second case %s", archive, name)
			}
			names[name] = true
			cases = append(cases, fileCase{archive: archive, subject: subject, name: name, yaml: content(t, archive, f)})
		}
	}
	return cases
}

// content is that of an entry with a file.
func content(t testing.TB, archive string, f txtar.File) []byte {
	t.Helper()
	switch filepath.Ext(f.Name) {
	case ".yaml":
		return f.Data
	case ".quoted":
		text, err := strconv.Unquote(strings.TrimSpace(string(f.Data)))
		if err != nil {
			t.Fatalf("%s: %s is not a string of Go: %v", archive, f.Name, err)
		}
		return []byte(text)
	}
	t.Fatalf("%s: the entry %s is neither .yaml, .quoted nor .want", archive, f.Name)
	return nil
}

// findCase is the case of a name.
func findCase(t testing.TB, dir, name string) fileCase {
	t.Helper()
	cases := fileCases(t, dir)
	i := slices.IndexFunc(cases, func(c fileCase) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("no case %s in testdata/%s", name, dir)
	}
	return cases[i]
}

// differences lists the settings that are not the defaults, one on a line.
func differences(c *Config) string {
	l := listing{tunnel: Tunnel{Settings: DefaultSettings()}, forward: Forward{Weight: 1, Priority: 1}}
	return l.of(c, Default())
}

// listing lists the values in which a configuration differs from another one.
type listing struct {
	tunnel  Tunnel // with which each tunnel is compared
	forward Forward
	b       *strings.Builder
}

func (l listing) of(c *Config, base Config) string {
	l.b = &strings.Builder{}
	l.add("", reflect.ValueOf(*c), reflect.ValueOf(base))
	return l.b.String()
}

// add writes a line for each value in v that base does not have.
func (l listing) add(path string, v, base reflect.Value) {
	switch {
	case reflect.DeepEqual(v.Interface(), base.Interface()):
	case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[Config]().PkgPath():
		for i := range v.NumField() {
			name := path
			if f := v.Type().Field(i); !f.Anonymous {
				name = strings.TrimPrefix(path+"."+f.Name, ".")
			}
			l.add(name, v.Field(i), base.Field(i))
		}
	case v.Kind() == reflect.Slice && v.Len() > 0:
		for i := range v.Len() {
			name, element := fmt.Sprintf("%s[%d]", path, i), reflect.Zero(v.Type().Elem())
			switch one := v.Index(i).Interface().(type) {
			case Tunnel:
				l.tunnel.Name = one.Name
				name, element = "tunnel "+one.Name, reflect.ValueOf(l.tunnel)
			case Forward:
				element = reflect.ValueOf(l.forward)
			}
			l.add(name, v.Index(i), element)
		}
	default:
		fmt.Fprintf(l.b, "%s: %s\n", path, settingText(v))
	}
}

// settingText writes a value so that no two values have the same text.
func settingText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case *uint8:
		return strconv.Itoa(int(*x))
	case error:
		return x.Error()
	case fmt.Stringer:
		return x.String()
	}
	if v.Kind() == reflect.String {
		return strconv.Quote(v.String())
	}
	return fmt.Sprint(v.Interface())
}
