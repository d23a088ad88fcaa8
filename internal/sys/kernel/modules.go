package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ModuleState is the state of a kernel module.
type ModuleState string

// The states.
const (
	ModuleLoaded  ModuleState = "loaded"   // or built in
	ModuleOnDisk  ModuleState = "on disk"  // the kernel loads it at the first use
	ModuleMissing ModuleState = "missing"  // the running kernel has no such module
	ModuleUnknown ModuleState = "unknown"  // there is no list of modules for the running kernel
	ModuleBarred  ModuleState = "disabled" // on disk, but the kernel takes no more modules
)

// Modules are the modules of the running kernel, as files below Root have them. An
// empty Root is this machine's.
type Modules struct{ Root string }

// State returns the state of a module. It only reads files, and loads nothing.
func (m Modules) State(name string) ModuleState {
	if _, err := os.Stat(filepath.Join(m.Root, "/sys/module", name)); err == nil {
		return ModuleLoaded
	}
	if m.lists("/proc/modules", func(line string) bool { return strings.HasPrefix(line, name+" ") }) {
		return ModuleLoaded
	}
	dir := filepath.Join("/lib/modules", Release())
	isFile := func(line string) bool {
		file, _, _ := strings.Cut(line, ":")
		file, _, _ = strings.Cut(filepath.Base(file), ".ko")
		return strings.ReplaceAll(file, "-", "_") == name
	}
	switch _, err := os.Stat(filepath.Join(m.Root, dir, "modules.dep")); {
	case m.lists(filepath.Join(dir, "modules.builtin"), isFile):
		return ModuleLoaded
	case errors.Is(err, fs.ErrNotExist):
		return ModuleUnknown
	case !m.lists(filepath.Join(dir, "modules.dep"), isFile):
		return ModuleMissing
	case m.lists("/proc/sys/kernel/modules_disabled", func(line string) bool { return line == "1" }):
		return ModuleBarred
	}
	return ModuleOnDisk
}

// lists reports whether a line of a file fits.
func (m Modules) lists(path string, fits func(line string) bool) bool {
	text, err := os.ReadFile(filepath.Join(m.Root, path))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if fits(strings.TrimSpace(line)) {
			return true
		}
	}
	return false
}

// Release is the running kernel's release, as uname -r prints it; empty if unknown.
func Release() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
