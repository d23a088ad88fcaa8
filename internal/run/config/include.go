package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// includeKey names further files of a configuration.
const includeKey = "include"

// Bounds of the included files of a configuration, beside maxFileBytes of each. The bytes of all bound the
// time in which a relay parses them: 1 s for prefixes.
const (
	maxIncludedFiles = 1000
	maxAllBytes      = 4 << 20
)

// File is a file of a configuration with its content.
type File struct {
	Path string `json:"path"` // as in messages
	Text []byte `json:"text"`
}

// Files are those of a configuration: the main one first, then the included ones in their order.
type Files []File

// Paths lists where they are.
func (f Files) Paths() []string {
	all := make([]string, len(f))
	for i, one := range f {
		all[i] = one.Path
	}
	return all
}

// Equal reports whether others are the same files with the same contents.
func (f Files) Equal(others Files) bool {
	return slices.EqualFunc(f, others, func(a, b File) bool { return a.Path == b.Path && string(a.Text) == string(b.Text) })
}

// Digest is the same for the same files with the same contents.
func (f Files) Digest() string {
	sum := sha256.New()
	for _, one := range f {
		fmt.Fprintf(sum, "%q %d\n", one.Path, len(one.Text))
		sum.Write(one.Text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// tree is a configuration before it is decoded.
type tree struct {
	root     *node
	files    Files
	faults   Errors // of putting the files together
	warnings Errors // likewise
}

func (t *tree) overlay(flags []Flag) {
	if len(flags) > 0 && t.root.kind == mapping {
		t.root.overlay(fromFlags(flags))
	}
}

// include parses a main file, and reads and adds those that it includes. The error is an [Errors]; the
// tree has the files that it is about, if all could be read.
func (l Loader) include(path string, data []byte) (tree, error) {
	root, err := parseText(path, data)
	if err != nil {
		return tree{}, err
	}
	t := tree{root: root, files: Files{{path, data}}}
	n := root.lookup(includeKey)
	if n == nil || n.kind == null { // the decoder says that it has no value
		return t, nil
	}
	d := &decoder{}
	r := inclusion{loader: l, main: path, bytes: len(data)}
	d.each(n, includeKey, func(n *node, pattern string) {
		if bad := r.add(n, pattern); bad != nil {
			d.errs = append(d.errs, bad)
		}
	})
	if len(d.errs) > 0 {
		return tree{}, d.errs
	}
	t.warnings = r.warnings()
	return t, t.add(r.files)
}

// parseFiles puts files together that were read before. The error is an [Errors].
func parseFiles(files Files) (tree, error) {
	if len(files) == 0 {
		return tree{}, Errors{{Position{}, "there is no file", "name one with --config"}}
	}
	root, err := parseText(files[0].Path, files[0].Text)
	if err != nil {
		return tree{}, err
	}
	t := tree{root: root, files: files[:1:1]}
	return t, t.add(files[1:])
}

// add parses included files, and adds their keys to the main one's: the tunnels of all make one list, and
// any other key may stand in one place, which the decoder checks. The error is an [Errors].
func (t *tree) add(files Files) error {
	var faults Errors
	for _, f := range files {
		t.files = append(t.files, f)
		root, err := parseText(f.Path, f.Text)
		var all Errors
		switch {
		case errors.As(err, &all):
			if all[0].Problem == emptyFile {
				all[0].Fix = "remove it, or write tunnels into it"
			}
			faults = append(faults, all...)
		case root.kind != mapping:
			faults = append(faults, &Error{root.at, fmt.Sprintf("an included file must be a mapping, not %s", root.kind), "begin it with tunnels: and put a dash before each tunnel"})
		case t.root.kind == mapping:
			t.merge(root)
		}
	}
	if len(faults) > 0 {
		return faults
	}
	return nil
}

// merge adds the keys of an included file.
func (t *tree) merge(file *node) {
	again := false // this file has had tunnels
	for _, e := range file.entries {
		all := t.root.lookup("tunnels")
		switch {
		case e.key.text == includeKey:
			t.faults = append(t.faults, &Error{e.key.at, "an included file cannot include others", "name them in include of the main file"})
		case e.key.text != "tunnels" || all == nil || again:
			t.root.entries = append(t.root.entries, e)
		case e.value.kind == list && all.kind == list:
			all.items = append(all.items, e.value.items...)
		case e.value.kind != list:
			t.faults = append(t.faults, &Error{e.value.at, fmt.Sprintf("tunnels must be a list, not %s", e.value.kind), "put a dash before each tunnel"})
		}
		again = again || e.key.text == "tunnels"
	}
}

// inclusion reads included files.
type inclusion struct {
	loader Loader
	main   string // path of the main file
	files  Files
	bytes  int // of all files
	passed []passedOver
}

// passedOver are the files of a folder that a pattern would read with the other of the two endings.
type passedOver struct {
	at    *node
	names []string // at most maxPassed
	paths []string
	more  bool
}

// maxPassed is how many files are named that a pattern passes over.
const maxPassed = 3

// warnings name the files that patterns pass over, and that nothing else includes.
func (r *inclusion) warnings() (all Errors) {
	for _, p := range r.passed {
		var names []string
		for i, path := range p.paths {
			if path != filepath.Clean(r.main) && !slices.ContainsFunc(r.files, func(f File) bool { return f.Path == path }) {
				names = append(names, p.names[i])
			}
		}
		if len(names) == 0 {
			continue
		}
		text := strings.Join(names, ", ")
		if p.more {
			text += " and others"
		}
		all = append(all, &Error{p.at.at, oneLine("include does not read " + text + ", for another ending"),
			"give them the ending of the pattern, or add a second pattern: *.yaml and *.yml are two"})
	}
	return all
}

// add reads the files of one pattern: a file, or all of a folder whose names match.
func (r *inclusion) add(n *node, pattern string) *Error {
	mistake := func(fix, format string, args ...any) *Error {
		return &Error{n.at, oneLine(fmt.Sprintf(format, args...)), fix}
	}
	folder, name := filepath.Split(pattern)
	wild := strings.ContainsAny(name, `*?[\`)
	switch _, err := filepath.Match(name, ""); {
	case !strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, ".yml"):
		return mistake("name files such as conf.d/*.yaml", "include cannot be %q: the names must end in .yaml or .yml", pattern)
	case err != nil:
		return mistake("write * for any letters, such as conf.d/*.yaml", "include cannot be %q: the pattern is malformed", pattern)
	case strings.ContainsAny(folder, `*?[\`):
		return mistake("name one folder, such as conf.d/*.yaml; give several as a list", "include cannot be %q: only the name of the file can be a pattern", pattern)
	}
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(filepath.Dir(r.main), folder)
	}
	names := []string{name}
	if wild {
		var err error
		if names, err = r.list(n, folder, name); err != nil {
			fix := "check the path and its permissions"
			if errors.Is(err, fs.ErrNotExist) {
				fix = "make the folder, which may be empty, or remove the line"
			}
			return mistake(fix, "the folder %s of include cannot be read: %v", folder, reason(err))
		}
	}
	for _, name := range names {
		path := filepath.Join(folder, name)
		if path == filepath.Clean(r.main) || slices.ContainsFunc(r.files, func(f File) bool { return f.Path == path }) {
			continue // read already
		}
		if len(r.files) == maxIncludedFiles {
			return mistake("put the tunnels of several into one", "more than %d files are included", maxIncludedFiles)
		}
		text, err := r.read(path)
		if err != nil {
			fix := "check the path and its permissions"
			if wild && errors.Is(err, fs.ErrNotExist) {
				fix = "try again, since it was there; or remove the link that leads nowhere"
			}
			return &Error{Position{File: path}, fmt.Sprintf("cannot be read: %v", reason(err)), fix}
		}
		if r.bytes += len(text); r.bytes > maxAllBytes {
			return &Error{Position{File: path}, fmt.Sprintf("with this file the configuration has more than %d bytes", maxAllBytes), "make it shorter, or run a second relay"}
		}
		r.files = append(r.files, File{path, text})
	}
	return nil
}

// list returns the names in a folder that match, in order, at most one more than are read. Hidden files,
// such as what editors write beside a file, match no pattern.
func (r *inclusion) list(n *node, folder, pattern string) (names []string, err error) {
	f, err := os.Open(filepath.Join(r.loader.Root, folder))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	over, other := passedOver{at: n}, strings.TrimSuffix(pattern, ".yaml")+".yml"
	if strings.HasSuffix(pattern, ".yml") {
		other = strings.TrimSuffix(pattern, ".yml") + ".yaml"
	}
	for {
		some, err := f.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, name := range some {
			if strings.HasPrefix(name, ".") {
				continue
			}
			if ok, _ := filepath.Match(pattern, name); ok {
				names = append(names, name)
			} else if ok, _ := filepath.Match(other, name); ok && len(over.names) < maxPassed {
				over.names, over.paths = append(over.names, name), append(over.paths, filepath.Join(folder, name))
			} else {
				over.more = over.more || ok
			}
		}
		if len(names) > maxIncludedFiles+1 { // the main file may be one
			break
		}
	}
	slices.Sort(names)
	r.passed = append(r.passed, over)
	return names, nil
}

var errNoFile = errors.New("it is no regular file")

// read reads a file. It does not wait for a pipe's writer.
func (r *inclusion) read(path string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(r.loader.Root, path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, syscall.EISDIR
	case !info.Mode().IsRegular():
		return nil, errNoFile
	}
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

// reason is an error without the path, which the message has.
func reason(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
