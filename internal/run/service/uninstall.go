package service

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"longhaul/internal/words/sorted"
)

// Removal has the steps that remove an installation.
type Removal struct {
	Steps []Step

	host    Host
	record  *Record
	kept    []Entry
	purge   bool
	private []string
}

// Removal plans the removal of the recorded files. It keeps changed files unless purge
// is set. With purge it also removes the private directories that were made here, with
// all files in them. The files of keep always stay.
func (h Host) Removal(r *Record, purge bool, private, keep []string) (*Removal, error) {
	m := &Removal{host: h, record: r, purge: purge, private: private}
	// Files first, then directories from the innermost on.
	entries := slices.Clone(r.Entries)
	sorted.By(entries, func(a, b Entry) int {
		switch {
		case a.isDir() != b.isDir():
			if a.isDir() {
				return 1
			}
			return -1
		case a.Path > b.Path:
			return -1
		}
		return 1
	})
	gone := map[string]bool{h.Dir: true}
	for _, e := range entries {
		digest, _, err := h.look(e.Path)
		switch {
		case err != nil:
			return nil, err
		case digest == "":
		case e.isDir():
			left, err := h.others(e.Path, gone)
			if err != nil {
				return nil, err
			}
			if len(left) > 0 && !(purge && slices.Contains(private, e.Path)) {
				m.keepDir(e, left)
				continue
			}
			m.step(Unmake, e.Path, "")
		case slices.Contains(keep, e.Path):
			m.step(Keep, e.Path, "requested")
			m.kept = append(m.kept, e)
			continue
		case !purge && !slices.Contains(e.Digests, digest):
			m.step(Keep, e.Path, changedSince)
			m.kept = append(m.kept, e)
			continue
		default:
			m.step(Remove, e.Path, "")
		}
		gone[e.Path] = true
	}
	return m, nil
}

// keepDir keeps a directory with other files, and drops it from the record: it belongs
// to others from now on.
func (m *Removal) keepDir(e Entry, left []string) {
	isKept := func(path string) bool {
		return slices.ContainsFunc(m.kept, func(k Entry) bool { return k.Path == path })
	}
	foreign := slices.DeleteFunc(left, func(name string) bool { return isKept(e.Path + "/" + name) })
	private := slices.Contains(m.private, e.Path)
	if private && len(foreign) > 0 {
		m.step(Keep, e.Path, "has "+enumerate(foreign))
	}
	above := slices.ContainsFunc(m.kept, func(k Entry) bool { return strings.HasPrefix(k.Path, e.Path+"/") })
	if private || above {
		m.kept = append(m.kept, e)
	}
}

func (m *Removal) step(verb Verb, path, why string) {
	m.Steps = append(m.Steps, Step{verb, path, why})
}

// others lists the files in a directory that the removal keeps.
func (h Host) others(dir string, gone map[string]bool) (names []string, err error) {
	at, err := h.place(dir)
	if err != nil {
		return nil, err
	}
	list, err := os.ReadDir(at)
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		path := dir + "/" + f.Name()
		if stem, ok := isPartial(path); !gone[path] && !(ok && gone[stem]) {
			names = append(names, f.Name())
		}
	}
	return names, nil
}

// enumerate names the first of some files, and the number of others.
func enumerate(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return names[0] + " and others"
}

// Apply carries the removal out. Files changed since the plan are lost.
func (m *Removal) Apply() error {
	unlock, err := m.host.lock()
	if err != nil {
		return err
	}
	defer unlock()
	for _, e := range m.record.Entries {
		if e.isDir() {
			continue
		}
		at, err := m.host.place(partial(e.Path))
		if err != nil {
			return err
		}
		if err := remove(at); err != nil {
			return err
		}
	}
	for _, s := range m.Steps {
		if s.Verb != Remove && s.Verb != Unmake {
			continue
		}
		at, err := m.host.place(s.Path)
		if err != nil {
			return err
		}
		if m.purge && slices.Contains(m.private, s.Path) {
			err = os.RemoveAll(at)
		} else {
			err = remove(at)
		}
		if err != nil {
			return err
		}
	}
	if len(m.kept) == 0 {
		return m.forget()
	}
	// A later purge finds the kept files.
	for _, e := range m.record.Entries {
		if e.isDir() && strings.HasPrefix(m.host.Dir+"/", e.Path+"/") {
			m.kept = append(m.kept, e)
		}
	}
	left := *m.record
	left.Program, left.Entries, left.Complete = "", m.kept, true
	return m.host.save(&left)
}

// Clear removes the leftovers of an installation that was interrupted before its
// record, and so before any other file, existed.
func (h Host) Clear() error {
	if !h.Exists(h.Dir) {
		return nil
	}
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return h.forget()
}

// forget removes the record, and then the directories that were made for it.
func (m *Removal) forget() error {
	if err := m.host.forget(); err != nil {
		return err
	}
	for _, s := range m.Steps {
		if s.Verb == Unmake {
			at, err := m.host.place(s.Path)
			if err != nil {
				return err
			}
			if err := remove(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes a file or an empty directory. A missing file, or a new file in the
// directory, is no error.
func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}
