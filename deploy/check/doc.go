// Package check holds what rlnode is deployed with to what it says: the chart, the compose file, the image, the board and the
// alerts. Its tests need root for the image, and Debian's prometheus on PATH or in bin/prometheus.
package check
