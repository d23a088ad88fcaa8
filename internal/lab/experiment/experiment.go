// Package experiment says what an experiment of the lab is: what it is called, how
// flags describe a run of it, and what a run results in.
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

	"longhaul/internal/lab/progress"
	"longhaul/internal/remedy"
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

	// Check completes the options from the parsed flags, and refuses those that
	// make no sense. It is called before there is a sandbox. An error is a mistake
	// of the command line, unless it is a Lack.
	Check(*pflag.FlagSet) error

	// Run runs the experiment in a sandbox.
	Run(context.Context, Environment) (Result, error)
}

// Environment is what runs get from outside.
type Environment struct {
	Program string // the longhaul binary that is run in the hosts
	Report  progress.Reporter
}

// Result is the outcome of a run. It marshals to JSON.
type Result interface {
	// WriteText prints the result in 80 columns.
	WriteText(io.Writer) error
}

// Judge is a Result that can be wrong.
type Judge interface {
	// Judge returns what is wrong with the result.
	Judge() error
}

// ErrShown is the error of a Judge whose text has shown already what is wrong.
var ErrShown = errors.New("the result is wrong")

// AlgorithmUser is a Run that uses congestion controls of longhaul's own.
type AlgorithmUser interface {
	// Algorithms says which of them. It is called after Check.
	Algorithms() Algorithms
}

// Algorithms says which of longhaul's own congestion controls the kernel should
// have during a run.
type Algorithms struct {
	Names    []string // may hold others' names, too
	All      bool     // all that can be loaded, whatever Names are
	Required bool     // an algorithm that cannot be loaded is an error
}

// Lack is the error of Check for a machine that cannot run the experiment.
type Lack string

func (l Lack) Error() string { return string(l) }

// CheckCases refuses names that are not among all.
func CheckCases(names, all []string) error {
	for _, name := range names {
		if !slices.Contains(all, name) {
			return remedy.New(fmt.Errorf("there is no case %q", name), "choose from "+strings.Join(all, ", "))
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
		return fmt.Errorf("%s lies in /run, which the lab has one of its own of: choose another place", file)
	}
	return nil
}
