package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// TestZonesAreNotTheHosts: a different zone database on the host changes nothing.
func TestZonesAreNotTheHosts(t *testing.T) {
	if os.Getenv("RLNODE_TEST_ZONES") != "" {
		if _, err := algorithms.Zone("Moon/Tranquility"); err == nil {
			t.Error("a zone that only this host has is known")
		}
		zone, err := algorithms.Zone("Europe/Berlin")
		expect.NoError(t, err)
		if name, offset := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).In(zone).Zone(); offset != 7200 {
			t.Errorf("Berlin's summer time is %s, %d s", name, offset)
		}
		return
	}
	dir := t.TempDir()
	tokyo, err := os.ReadFile("/usr/share/zoneinfo/Asia/Tokyo")
	if err != nil {
		t.Skip("this machine has no zone database")
	}
	for _, name := range []string{"Moon/Tranquility", "Europe/Berlin"} {
		expect.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), tokyo, 0o600))
	}
	child := exec.Command(os.Args[0], "-test.run=^TestZonesAreNotTheHosts$")
	child.Env = append(os.Environ(), "ZONEINFO="+dir, "RLNODE_TEST_ZONES=1")
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
