//go:build race

package main

// raceDetector: the program is built with it when the tests are.
const raceDetector = true
