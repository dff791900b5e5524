//go:build race

package cluster

// raceDetector: the tests run under it.
const raceDetector = true
