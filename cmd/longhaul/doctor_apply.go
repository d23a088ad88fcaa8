//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/internal/cc"
	"longhaul/internal/display"
	"longhaul/internal/doctor"
	"longhaul/internal/remedy"
	"longhaul/internal/undo"
)

// applied are the remedies that doctor has performed on this host, each as the
// arguments of the command that takes it back.
type applied struct{ dir string }

func newApplied() applied { return applied{dir: filepath.Join(cc.DefaultUndo, "doctor")} }

func (a applied) path() string { return filepath.Join(a.dir, "doctor.json") }

func (a applied) read() (commands [][]string, err error) {
	b, err := os.ReadFile(a.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &commands)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what was applied: %w", err)
	}
	return commands, nil
}

func (a applied) write(commands [][]string) error {
	if len(commands) == 0 {
		return undo.Remove(a.path())
	}
	b, err := json.Marshal(commands)
	if err != nil {
		return err
	}
	return undo.Write(a.path(), append(b, '\n'))
}

// applyRemedies performs the remedies that longhaul has for this host, each after
// asking. Of a cause's remedies one is enough.
func applyRemedies(env *env, r doctor.Report, yes bool) error {
	remedies := slices.DeleteFunc(slices.Clone(r.Remedies), func(r doctor.Remedy) bool { return len(r.Apply) == 0 })
	if len(remedies) == 0 {
		return errors.New("none of the remedies is for longhaul to apply on this host")
	}
	a := newApplied()
	unlock, err := undo.Lock(a.dir)
	if err != nil {
		return err
	}
	defer unlock()
	answers := bufio.NewScanner(env.stdin)
	for _, remedy := range remedies {
		fmt.Fprintf(env.stderr, "apply: longhaul %s\n", strings.Join(remedy.Apply, " "))
		if !yes {
			fmt.Fprint(env.stderr, "? [y/N] ")
			if !answers.Scan() || !strings.EqualFold(strings.TrimSpace(answers.Text()), "y") {
				fmt.Fprintln(env.stderr, "left as it is")
				continue
			}
		}
		commands, err := a.read()
		if err != nil {
			return err
		}
		// What takes it back is remembered before there is anything to take back.
		if err := a.write(append(commands, remedy.Undo)); err != nil {
			return err
		}
		if err := runSelf(env, remedy.Apply); err != nil {
			return errors.Join(err, a.write(commands))
		}
		fmt.Fprintln(env.stderr, "done for new connections; take it back with: longhaul doctor --undo")
	}
	return nil
}

// undoApplied takes back what doctor has applied, the last first.
func undoApplied(env *env) error {
	a := newApplied()
	unlock, err := undo.Lock(a.dir)
	if err != nil {
		return err
	}
	defer unlock()
	commands, err := a.read()
	if err != nil {
		return err
	}
	if len(commands) == 0 {
		return errors.New("doctor has applied nothing on this host that is still in force")
	}
	var left [][]string // that could not be taken back
	for len(commands) > 0 {
		last := commands[len(commands)-1]
		fmt.Fprintf(env.stderr, "longhaul %s\n", strings.Join(last, " "))
		if err := runSelf(env, last); err != nil {
			left = append([][]string{last}, left...)
		}
		commands = commands[:len(commands)-1]
		if err := a.write(slices.Concat(commands, left)); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return remedy.New(fmt.Errorf("%d of them could not be taken back", len(left)), "if that was done by hand, remove "+a.path())
	}
	return nil
}

// runSelf runs another command of this program.
func runSelf(env *env, args []string) error {
	program, err := ownProgram()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = display.Raw(env.stderr), display.Raw(env.stderr)
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &exitError{status: exit.ExitCode()} // it has said why
	}
	return err
}
