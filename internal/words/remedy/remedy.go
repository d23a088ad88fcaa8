// Package remedy has the one form of an error that says what to do about it.
package remedy

import "errors"

// Error is a problem and its remedy.
type Error struct {
	Err error
	Fix string // a phrase in the imperative: "run this as root"
}

// New joins an error and what to do about it. It has 500 callers, whose copies of it
// would take 50 kB.
//
//go:noinline
func New(err error, fix string) *Error { return &Error{err, fix} }

// Error is the problem alone, for whoever prints the remedy on a line of its own.
func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Of returns the remedy of an error, of the outermost if it wraps several; "" if it has none.
func Of(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Fix
	}
	return ""
}

// Line returns the problem and its remedy on one line, for a log.
func Line(err error) string {
	if fix := Of(err); fix != "" {
		return err.Error() + "; " + fix
	}
	return err.Error()
}
