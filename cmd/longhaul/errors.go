package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"longhaul/internal/words/display"
	"longhaul/internal/words/remedy"
)

// The exit codes of every command.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // a wrong command line or a bad configuration
	exitDrained = 3 // relay: the drain deadline passed before every flow had ended
	// 4 and 5 are those of doctor's verdicts: doctor.Strength.
)

// exitError ends the program with a status. Without an error nothing is left to
// print.
type exitError struct {
	error
	status int
}

func (e *exitError) Unwrap() error { return e.error }

// mistakes are those of a configuration, config.Errors. Systems that have only measure need no more
// of that package.
type mistakes interface {
	error
	Each(tell func(mistake, fix string))
}

// usageError marks an error as one of the command line.
func usageError(err error) error { return &exitError{err, exitUsage} }

func exitCode(err error) int {
	var exit *exitError
	var bad mistakes
	switch {
	case errors.As(err, &exit):
		return exit.status
	case errors.As(err, &bad):
		return exitUsage
	}
	return exitFailure
}

// printError writes an error and its hint, each on a line with the program's name.
func printError(w io.Writer, err error) {
	var exit *exitError
	if errors.As(err, &exit) && exit.error == nil {
		return
	}
	var bad mistakes
	if errors.As(err, &bad) {
		bad.Each(func(mistake, fix string) {
			writeMessage(w, mistake)
			writeHint(w, fix)
		})
		return
	}
	writeMessage(w, err.Error())
	writeHint(w, remedy.Of(err))
}

// writeWarning writes a warning and its hint, as [printError] writes an error.
func writeWarning(w io.Writer, warning, fix string) {
	writeMessage(w, "warning: "+warning)
	writeHint(w, fix)
}

func writeHint(w io.Writer, fix string) {
	if fix != "" {
		writeMessage(w, "hint: "+fix)
	}
}

// writeMessage writes a message after the program's name. A terminal gets it folded, a file or
// another program on one line.
func writeMessage(w io.Writer, text string) {
	const lead = "longhaul: "
	if display.IsTerminal(w) && !strings.Contains(text, "\n") {
		text = display.Fold(text, messageWidth, len(lead))
	}
	fmt.Fprintln(w, lead+text)
}

// messageWidth is the greatest width of messages on a terminal, in columns.
const messageWidth = 80

// problemOf splits an error into problem and remedy for the configuration. Both are
// empty without an error.
func problemOf(err error) (problem, fix string) {
	if e := (*remedy.Error)(nil); errors.As(err, &e) {
		return e.Error(), e.Fix
	}
	return "", ""
}
