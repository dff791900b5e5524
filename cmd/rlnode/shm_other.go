//go:build !linux

package main

// inMemory is not known here: whoever has such a directory says so.
func inMemory(string) bool { return false }
