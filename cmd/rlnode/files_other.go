//go:build !unix

package main

import "log/slog"

// raiseFiles does nothing: this system has no such limit on open files.
func raiseFiles(*slog.Logger) {}
