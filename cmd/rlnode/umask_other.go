//go:build !unix

package main

// restrictUmask does nothing: files have no modes on this system.
func restrictUmask() {}
