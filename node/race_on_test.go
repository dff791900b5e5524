//go:build race

package node

// raceDetector: the program is built with it when the tests are.
const raceDetector = true
