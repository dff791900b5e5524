//go:build race

package node

// raceDetector reports whether the tests, and so the program, are built with the race detector.
const raceDetector = true
