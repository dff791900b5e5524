// Package e2e looks at the dashboard as a person does: in Chromium, served by real nodes under load. The tests speak the
// browser's DevTools protocol over a pipe, which needs no library. Without chromium on PATH they are skipped, in CI they
// fail. With SHOTS=<folder> they leave pictures of what they saw there.
package e2e
