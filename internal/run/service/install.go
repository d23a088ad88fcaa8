package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Verb is the change of a path.
type Verb string

// The verbs.
const (
	Make    Verb = "make"    // a directory
	Write   Verb = "write"   // a new file
	Replace Verb = "replace" // a file of an earlier installation
	Link    Verb = "link"    // a symbolic link
	Remove  Verb = "remove"
	Unmake  Verb = "unmake" // a directory
	Keep    Verb = "keep"   // changed or not installed here; Why says more
	Present Verb = "present"
)

// Step is a change, or the reason for none.
type Step struct {
	Verb Verb   `json:"do"`
	Path string `json:"path"`
	Why  string `json:"why,omitempty"`
}

// Plan has the steps that install some files on a host.
type Plan struct {
	Steps []Step

	host  Host
	dirs  []string
	files []File
	drop  []string
	// The record during and after the plan.
	during, after Record
}

// Changes reports whether the plan changes anything.
func (p *Plan) Changes() bool { return len(p.files)+len(p.drop) > 0 }

const changedSince = "changed since it was installed"

// Plan compares the host with the wanted files. It changes nothing.
func (h Host) Plan(want Wanted) (*Plan, error) {
	before, err := h.Load()
	if err != nil {
		return nil, err
	}
	if before == nil {
		before = &Record{}
	}
	p := &Plan{host: h}
	p.during = Record{Program: want.Program, Version: want.Version, At: time.Now().UTC().Truncate(time.Second), Loads: union(before.Loads, want.Loads), Choices: want.Choices}
	p.after = p.during
	p.after.Complete = true
	for _, e := range before.Entries {
		p.during.Entries = append(p.during.Entries, Entry{e.Path, slices.Clone(e.Digests)})
		if e.isDir() {
			p.after.add(e.Path, "")
		}
	}
	// The record's own directory comes first.
	if err := p.parents(filepath.Join(h.Dir, recordName)); err != nil {
		return nil, err
	}
	for _, f := range want.Files {
		if err := p.file(f, before.find(f.Path)); err != nil {
			return nil, err
		}
	}
	for _, e := range before.Entries {
		wanted := slices.ContainsFunc(want.Files, func(f File) bool { return f.Path == e.Path })
		if wanted || e.isDir() {
			continue
		}
		digest, _, err := h.look(e.Path)
		switch {
		case err != nil:
			return nil, err
		case digest == "":
		case slices.Contains(e.Digests, digest):
			p.drop = append(p.drop, e.Path)
			p.step(Remove, e.Path, "no longer needed")
		default:
			p.after.Entries = append(p.after.Entries, e)
			p.step(Keep, e.Path, changedSince)
		}
	}
	return p, nil
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func (p *Plan) step(verb Verb, path, why string) {
	p.Steps = append(p.Steps, Step{verb, path, why})
}

// file plans one file; ours is its entry in the record, nil without one.
func (p *Plan) file(f File, ours *Entry) error {
	digest, mode, err := p.host.look(f.Path)
	if err != nil {
		return err
	}
	want := f.digest()
	same := digest == want && (f.Link != "" || mode.Perm() == f.Mode.Perm())
	verb := Write
	switch {
	case digest == "":
		if err := p.parents(f.Path); err != nil {
			return err
		}
	case same:
		if ours != nil {
			p.after.add(f.Path, want)
		}
		p.step(Present, f.Path, f.Why)
		return nil
	case ours != nil && slices.Contains(ours.Digests, digest) && !f.Seed:
		verb = Replace
	case f.Vital:
		return &ErrConflict{f.Path, ours != nil}
	default:
		why := "existed already"
		if ours != nil {
			p.after.Entries = append(p.after.Entries, *ours)
			if why = changedSince; slices.Contains(ours.Digests, digest) {
				why = "installed before"
			}
		}
		p.step(Keep, f.Path, why)
		return nil
	}
	if f.Link != "" && verb == Write {
		verb = Link
	}
	p.files = append(p.files, f)
	p.during.add(f.Path, want)
	p.after.add(f.Path, want)
	p.step(verb, f.Path, f.Why)
	return nil
}

// parents plans the missing directories above a path.
func (p *Plan) parents(path string) error {
	var missing []string
	for dir := filepath.Dir(path); dir != "/" && !slices.Contains(p.dirs, dir); dir = filepath.Dir(dir) {
		at, err := p.host.place(dir)
		if err != nil {
			return err
		}
		info, err := os.Stat(at)
		if err == nil && info.IsDir() {
			break
		}
		if err == nil {
			return fmt.Errorf("%s is not a directory", dir)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	for _, dir := range missing {
		p.dirs = append(p.dirs, dir)
		p.during.add(dir, "")
		p.after.add(dir, "")
		p.step(Make, dir, "")
	}
	return nil
}

// Apply carries the plan out. The host must be unchanged since the plan. Apply does
// not overwrite new files.
func (p *Plan) Apply() error {
	unlock, err := p.host.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.host.save(&p.during); err != nil {
		return err
	}
	for _, dir := range p.dirs {
		at, err := p.host.place(dir)
		if err != nil {
			return err
		}
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(at, 0o755); err != nil { // whatever the umask
			return err
		}
	}
	for _, f := range p.files {
		digest, _, err := p.host.look(f.Path)
		if err != nil {
			return err
		}
		if digest != "" && !slices.Contains(p.during.find(f.Path).Digests, digest) {
			return &ErrConflict{Path: f.Path}
		}
		if err := p.host.write(f); err != nil {
			return err
		}
	}
	for _, path := range p.drop {
		at, err := p.host.place(path)
		if err != nil {
			return err
		}
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return p.host.save(&p.after)
}
