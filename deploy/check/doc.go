// Package check tests that the deployment files agree with the product: the
// chart, the compose file, the image, the board and the alerts. Its tests need
// root for the image, and Debian's prometheus on PATH or in bin/prometheus.
package check
