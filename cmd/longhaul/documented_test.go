//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentedCommands holds that the program takes every command line of the README
// and of the pages: its command is there, with these flags and as many arguments.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	for _, page := range append(pages, "../../README.md", "../../bench/README.md", "../../bench/experiments.md", "../../docs/records/results.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		tables := strings.HasSuffix(page, "README.md") || strings.HasSuffix(page, "results.md")
		for _, line := range commandLines(string(text), tables) {
			taken++
			err := takes(testRoot(t), strings.Fields(line)[1:])
			if err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(page), line, err)
			}
		}
	}
	if taken < 100 {
		t.Errorf("only %d command lines found", taken)
	}
}

// TestLabNamesOwnCommands holds that what lab up suggests is there on a bare host: commands of this
// program, in the hosts as well.
func TestLabNamesOwnCommands(t *testing.T) {
	lines := regexp.MustCompile(`longhaul .*`).FindAllString(labNext, -1)
	if len(lines) != 4 {
		t.Errorf("%d commands in %q", len(lines), labNext)
	}
	for _, line := range lines {
		for command := range strings.SplitSeq(line, " -- ") {
			words := strings.Fields(command)
			if words[0] != "longhaul" {
				t.Errorf("%s runs %s, which a bare host may lack", line, words[0])
			}
		}
		outer, inner, _ := strings.Cut(line, " -- ")
		args := strings.Fields(outer)[1:]
		if inner != "" {
			args = append(append(args, "--"), strings.Fields(inner)...)
			if err := takes(testRoot(t), strings.Fields(inner)[1:]); err != nil {
				t.Errorf("%s: %v", inner, err)
			}
		}
		if err := takes(testRoot(t), args); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

var (
	separators = regexp.MustCompile(`\||&&|;`)
	inline     = regexp.MustCompile("`(longhaul [^`]*)`")
	// What a shell takes apart, and placeholders in capitals.
	notLiteral = regexp.MustCompile("[\"'$\\\\<>{}…[]|\\.\\.\\.|\\b[A-Z]\\b|\\b[A-Z]{3,}\\b")
)

// commandLines returns the commands of a page's indented lines, and of its tables if asked.
func commandLines(page string, tables bool) []string {
	var lines []string
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "    "):
			line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
			line = strings.Replace(line, "go run ./cmd/longhaul", "longhaul", 1)
			for _, command := range separators.Split(line, -1) {
				if command = strings.TrimSpace(command); strings.HasPrefix(command, "longhaul ") {
					lines = append(lines, command)
				}
			}
		case tables && strings.HasPrefix(line, "|"):
			for _, m := range inline.FindAllStringSubmatch(line, -1) {
				lines = append(lines, m[1])
			}
		}
	}
	return slices.DeleteFunc(lines, notLiteral.MatchString)
}

// TestArchitecture holds that ARCHITECTURE.md has each package of the repository, and names no folder
// that is missing.
func TestArchitecture(t *testing.T) {
	text := readSource(t, "../../ARCHITECTURE.md")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z]+[a-z0-9_/]*/)(?:\\{([a-z0-9_,/]+)\\}/)?`").FindAllStringSubmatch(text, -1) {
		for name := range strings.SplitSeq(m[2], ",") {
			named[filepath.Join(m[1], name)] = true
		}
	}
	for name := range named {
		if info, err := os.Stat(filepath.Join("../..", name)); err != nil || !info.IsDir() {
			t.Errorf("ARCHITECTURE.md names %s, which is no folder", name)
		}
	}
	packages := 0
	for _, wing := range []string{"bench", "bpf", "internal", "lab", "packaging", "test"} {
		err := filepath.WalkDir("../../"+wing, func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if entry.Name() == "testdata" {
				return filepath.SkipDir
			}
			files, err := filepath.Glob(filepath.Join(path, "*.go"))
			if len(files) == 0 {
				return err
			}
			packages++
			if name := strings.TrimPrefix(path, "../../"); !named[name] {
				t.Errorf("ARCHITECTURE.md lacks the package %s", name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if packages < 100 {
		t.Errorf("only %d packages found", packages)
	}
}
