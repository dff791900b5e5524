//go:build !linux

package api

import "syscall"

// boundSocket does nothing: here the system's own bounds hold.
func boundSocket(_, _ string, _ syscall.RawConn) error { return nil }

// MaxFiles returns an assumed limit of open files.
func MaxFiles() int { return assumedFiles }

// HasHungUp always returns false: here a node notices a hang-up only when it
// sends an answer.
func (c *Connection) HasHungUp() bool { return false }
