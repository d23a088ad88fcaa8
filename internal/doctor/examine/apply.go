package examine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"longhaul/internal/cc"
	"longhaul/internal/doctor"
	"longhaul/internal/remedy"
	"longhaul/internal/undo"
)

// Host applies remedies to this host with commands of longhaul, and records the
// arguments of the commands that undo them.
type Host struct {
	// Dir has the file of those commands.
	Dir string
	// Run runs longhaul with arguments.
	Run func(args []string) error
}

// DefaultDir is the usual [Host.Dir].
var DefaultDir = filepath.Join(cc.DefaultUndo, "doctor")

func (h Host) path() string { return filepath.Join(h.Dir, "doctor.json") }

func (h Host) read() (commands [][]string, err error) {
	b, err := os.ReadFile(h.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &commands)
	}
	if err != nil {
		return nil, fmt.Errorf("read the applied remedies: %w", err)
	}
	return commands, nil
}

func (h Host) write(commands [][]string) error {
	if len(commands) == 0 {
		return undo.Remove(h.path())
	}
	b, err := json.Marshal(commands)
	if err != nil {
		return err
	}
	return undo.Write(h.path(), append(b, '\n'))
}

// Apply applies the remedies of a report that longhaul can apply on this host and
// that confirm accepts. It ends at the first failure.
func (h Host) Apply(report doctor.Report, confirm func(doctor.Remedy) bool) error {
	remedies := slices.DeleteFunc(slices.Clone(report.Remedies), func(r doctor.Remedy) bool { return len(r.Apply) == 0 })
	if len(remedies) == 0 {
		return errors.New("longhaul can apply none of the remedies on this host")
	}
	unlock, err := undo.Lock(h.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	for _, r := range remedies {
		if !confirm(r) {
			continue
		}
		commands, err := h.read()
		if err != nil {
			return err
		}
		// Write the command that undoes the remedy before applying it.
		if err := h.write(append(commands, r.Undo)); err != nil {
			return err
		}
		if err := h.Run(r.Apply); err != nil {
			return errors.Join(err, h.write(commands))
		}
	}
	return nil
}

// Undo undoes the applied remedies, the last first. It continues after failures, and
// keeps them recorded.
func (h Host) Undo() error {
	unlock, err := undo.Lock(h.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	commands, err := h.read()
	if err != nil {
		return err
	}
	if len(commands) == 0 {
		return errors.New("doctor has no applied remedy on this host")
	}
	var failed [][]string
	for len(commands) > 0 {
		last := commands[len(commands)-1]
		if err := h.Run(last); err != nil {
			failed = append([][]string{last}, failed...)
		}
		commands = commands[:len(commands)-1]
		if err := h.write(slices.Concat(commands, failed)); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return remedy.New(fmt.Errorf("%d undo commands failed", len(failed)),
			"if you have undone these by hand, remove "+h.path())
	}
	return nil
}
