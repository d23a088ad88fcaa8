package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	code    = regexp.MustCompile("(?ms)^```.*?^```|^    [^\\n]*$")
	mention = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md\b`)
)

// TestLinks holds that every relative link of a page leads to a file, and every anchor to a heading.
func TestLinks(t *testing.T) {
	links := 0
	for path, text := range texts(t, ".md") {
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target, fragment, hasFragment := strings.Cut(match[1], "#")
			if strings.Contains(target, ":") {
				continue // of another host
			}
			links++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s: no such file", path, match[1])
				continue
			}
			if hasFragment && !slices.Contains(anchors(t, file), fragment) {
				t.Errorf("%s: %s: no such heading", path, match[1])
			}
		}
	}
	if links < 300 {
		t.Errorf("only %d links found", links)
	}
}

// TestMentions holds that every page that the source names is there.
func TestMentions(t *testing.T) {
	mentions := 0
	for path, text := range texts(t, ".go", ".c", ".h") {
		for _, page := range mention.FindAllString(text, -1) {
			mentions++
			if _, err := os.Stat(filepath.Join("..", page)); err != nil {
				t.Errorf("%s: %s: no such page", path, page)
			}
		}
	}
	if mentions < 20 {
		t.Errorf("only %d mentions found", mentions)
	}
}

// TestPagesAreShort holds that a page fits a head, and all of them an evening.
func TestPagesAreShort(t *testing.T) {
	const most, mostOfAll = 300, 5500
	pages, all := 0, 0
	err := fs.WalkDir(Pages, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := Pages.ReadFile(name)
		pages++
		lines := strings.Count(string(text), "\n")
		all += lines
		if lines > most {
			t.Errorf("%s has %d lines, more than %d: trials and dated figures belong into docs/records/", name, lines, most)
		}
		return err
	})
	if err != nil || pages < 40 {
		t.Fatalf("%d pages: %v", pages, err)
	}
	if all > mostOfAll {
		t.Errorf("all pages have %d lines, more than %d: say a thing on one page", all, mostOfAll)
	}
}

// texts returns the files of the repository whose names end so, by path.
func texts(t *testing.T, ends ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() {
			if name != ".." && strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains(ends, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, match := range heading.FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, link.ReplaceAllString(match[1], "]")))
	}
	return all
}
