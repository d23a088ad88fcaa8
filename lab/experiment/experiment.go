// Package experiment defines the experiments of the lab: their names, flags, runs and
// results.
package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"longhaul/internal/words/remedy"
	"longhaul/lab/progress"
)

// Experiment is an entry of lab list and a command of lab run.
type Experiment struct {
	Name    string
	Summary string // one line
	Source  string // the published report
	Cases   []string

	Short, Long, Example string // of the command's help

	// New returns a run with the usual options.
	New func() Run
}

// Run is one run of an experiment.
type Run interface {
	// Flags adds the flags that choose the options of the run.
	Flags(*pflag.FlagSet)

	// Check completes the options from the parsed flags, and refuses invalid ones.
	// It runs before the sandbox is built. An error is a mistake of the command
	// line, unless it is a Lack.
	Check(*pflag.FlagSet) error

	// Run runs the experiment in a sandbox.
	Run(context.Context, Environment) (Result, error)
}

// Environment is the environment of a run.
type Environment struct {
	Program string // the longhaul binary for the hosts
	Report  progress.Reporter
}

// Result is the outcome of a run. It marshals to JSON.
type Result interface {
	// WriteText prints the result in 80 columns.
	WriteText(io.Writer) error
}

// Judge is a Result that can fail its own check.
type Judge interface {
	// Judge returns what is wrong with the result.
	Judge() error
}

// ErrShown is the error of a Judge whose text already shows the mistake.
var ErrShown = errors.New("the result is wrong")

// AlgorithmUser is a Run with longhaul's own congestion controls.
type AlgorithmUser interface {
	// Algorithms returns them. It is called after Check.
	Algorithms() Algorithms
}

// Algorithms names longhaul's congestion controls that the kernel needs during a run.
type Algorithms struct {
	Names    []string // may include other algorithms
	All      bool     // all that can be loaded, besides Names
	Required bool     // an algorithm that cannot be loaded is an error
}

// Lack is the error of Check for a machine that cannot run the experiment.
type Lack string

func (l Lack) Error() string { return string(l) }

// CheckCases refuses names that are not among all.
func CheckCases(names, all []string) error {
	for _, name := range names {
		if !slices.Contains(all, name) {
			return remedy.New(fmt.Errorf("unknown case %q", name), "choose from "+strings.Join(all, ", "))
		}
	}
	return nil
}

// CheckFile refuses a file that the sandbox would hide from the user. An empty
// name is no file.
func CheckFile(file string) error {
	if file == "" {
		return nil
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	if strings.HasPrefix(path, "/run/") {
		return fmt.Errorf("%s is in /run, which the lab replaces: choose another place", file)
	}
	return nil
}
