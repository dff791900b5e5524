//go:build !unix

package main

// privateFiles does nothing: files have no modes on this system.
func privateFiles() {}
