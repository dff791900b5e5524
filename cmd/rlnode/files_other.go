//go:build !unix

package main

import "log/slog"

// raiseFiles does nothing where files are not limited this way.
func raiseFiles(*slog.Logger) {}
