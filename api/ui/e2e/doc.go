// Package e2e tests the dashboard as a person uses it: in Chromium, served by
// real nodes under load. The tests speak the browser's DevTools protocol over a
// pipe, which needs no library. `make dashboard` runs them. They need chromium
// on PATH and compile only with the build tag browser. With SHOTS=<folder> they
// save pictures of the page there.
package e2e
