package main

import (
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// A node has the metrics that docs/operations.md names, except those of other
// regions, which a lone node lacks, and those of rules and checks.
func TestDocsNameMetrics(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	expect.NoError(t, err)
	elsewhere := map[string]bool{
		"rlnode_region_reachable": true, "rlnode_region_members": true, "rlnode_follow_age_seconds": true,
		// TestCertificateExpiry has the last one
		"rlnode_adaptive_factor": true, "rlnode_checks_total": true, "rlnode_certificate_expiry_seconds": true,
	}
	// A node without rules of slots has no rows for them.
	for _, name := range []string{"held", "refused_total", "renewed_total", "expired_total"} {
		elsewhere["rlnode_slots_"+name] = true
	}
	var names []string
	for _, match := range regexp.MustCompile("`(rlnode_[a-z0-9_]+)").FindAllStringSubmatch(string(page), -1) {
		if !elsewhere[match[1]] {
			names = append(names, match[1])
		}
	}
	if len(names) < 50 {
		t.Fatalf("the page names %d metrics", len(names))
	}
	s := start(t, t.TempDir(), "--redis-port", strconv.Itoa(process.FreePort(t))) // off by default
	lacks := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("a node does not show %s", lacks)
		}
	})
	// Some appear with the first checkpoint, or with the first measurement of the processors.
	process.Eventually(t, "the node shows every metric that docs/operations.md names", func() bool {
		resp, err := s.client.Get(s.admin + "/metrics")
		expect.NoError(t, err)
		defer resp.Body.Close()
		shown, err := io.ReadAll(resp.Body)
		expect.NoError(t, err)
		for _, name := range names {
			if lacks = name; !strings.Contains(string(shown), "# TYPE "+name+" ") {
				return false
			}
		}
		return true
	})
}
