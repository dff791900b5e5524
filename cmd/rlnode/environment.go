package main

import (
	"context"
	"fmt"
	"io"
)

// environment gives commands access to the world outside the program.
type environment struct {
	ctx    context.Context // ends on a signal, except for serve, which handles signals itself
	args   []string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// terminal means that a person can be asked on stdin and stdout.
	terminal bool
}

// Exit codes. For check, exitFailed means refused, so its errors are exitUsage, too.
const (
	exitOK     = 0
	exitFailed = 1 // an error; for check, a refusal; for validate, mistakes in the file
	exitUsage  = 2 // invalid command line

	exitPermission = 3 // a change of the rules needs permission; nothing was changed
	exitChange     = 4 // diff and --dry-run: there is a change
)

// exitError is an error that sets the exit code. If err is nil, nothing more is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit with %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError returns an error with exitUsage, for mistakes on the command line
// that only the command itself can detect.
func usageError(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}
