// Package remedy has the one form of an error that says what to do about it.
package remedy

import (
	"errors"
	"io/fs"
	"syscall"
)

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

// Of returns the remedy of an error, of the outermost if it wraps several; "" if it has none. Any
// operation may run out of descriptors, so that error needs no remedy of its own.
func Of(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Fix
	}
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files: ulimit -n, or LimitNOFILE= in the unit"
	case errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files of the host: sysctl fs.file-max"
	}
	return ""
}

// Proc adds what to do if a file of /proc that each kernel has is missing or may not be read.
func Proc(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return New(err, "mount /proc, with /proc/sys, for this process to read")
	}
	return err
}

// OutOfDescriptors reports whether an error means that this process or the host has no more open
// files. It says nothing of what else the operation needs.
func OutOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// Line returns the problem and its remedy on one line, for a log.
func Line(err error) string {
	if fix := Of(err); fix != "" {
		return err.Error() + "; " + fix
	}
	return err.Error()
}
