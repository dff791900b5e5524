package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/operations.md names metrics that a node shows, but for those of other regions, which a node by itself has not.
func TestDocsNameMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	resp, err := s.client.Get(s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	shown, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := map[string]bool{
		"rlnode_region_reachable": true, "rlnode_region_members": true, "rlnode_follow_age_seconds": true, // of other regions
		"rlnode_adaptive_factor": true, // of adaptive rules
		"rlnode_checks_total":    true, // of checks
		"rlnode_load":            true, // after a second
	}
	names := regexp.MustCompile("`(rlnode_[a-z0-9_]+)")
	found := 0
	for _, match := range names.FindAllStringSubmatch(string(page), -1) {
		found++
		if !elsewhere[match[1]] && !strings.Contains(string(shown), "# TYPE "+match[1]+" ") {
			t.Errorf("docs/operations.md names %s, and a node does not show it", match[1])
		}
	}
	if found < 50 {
		t.Errorf("the page names %d metrics", found)
	}
}
