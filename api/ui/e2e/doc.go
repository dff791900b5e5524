// Package e2e tests the dashboard as a person uses it: in Chromium, served by real nodes under load. The tests speak
// the browser's DevTools protocol over a pipe, which needs no library. Without chromium on PATH they are skipped; in CI
// they fail. With SHOTS=<folder> they save pictures of the page there.
package e2e
