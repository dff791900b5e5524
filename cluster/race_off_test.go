//go:build !race

package cluster

// raceDetector reports whether the race detector is on.
const raceDetector = false
