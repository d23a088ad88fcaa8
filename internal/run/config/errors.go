package config

import (
	"fmt"
	"strings"
)

// Position is the place of a value: in a file (line and column count from 1) or
// in a flag.
type Position struct {
	File         string
	Line, Column int
	Flag         string
}

// String is "file:line:column", "file" for the whole file, or the flag.
func (p Position) String() string {
	switch {
	case p.Flag != "":
		return p.Flag
	case p.Line == 0:
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// seenFrom is where the place is for a message at another one: the line, and the file if it is another.
func (p Position) seenFrom(other Position) string {
	if p.File == other.File || p.Line == 0 {
		return fmt.Sprintf("on line %d", p.Line)
	}
	return fmt.Sprintf("in %s on line %d", p.File, p.Line)
}

// Error is one mistake in a configuration.
type Error struct {
	At      Position
	Problem string // in the value
	Fix     string // the action that removes it
}

// Error is the position, the problem and the fix on one line.
func (e *Error) Error() string {
	return e.At.String() + ": " + e.Problem + "; " + e.Fix
}

// Errors lists all mistakes in the order of the files and their lines.
type Errors []*Error

// Each calls tell with each mistake and its fix.
func (e Errors) Each(tell func(mistake, fix string)) {
	for _, one := range e {
		tell(one.At.String()+": "+one.Problem, one.Fix)
	}
}

// Error joins the mistakes, one per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}
