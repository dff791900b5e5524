package admin_test

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
)

// Open reports the required fields that are missing.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for want, change := range map[string]func(*apitest.Config){
		"open admin plane: listen": func(c *apitest.Config) { c.Addr = n.Admin.Addr().String() },
		"Loads is missing":         func(c *apitest.Config) { c.Loads = nil },
		"Levels is missing":        func(c *apitest.Config) { c.Levels = nil },
		"Regions is missing":       func(c *apitest.Config) { c.Regions = nil },
		"CatchUp is missing":       func(c *apitest.Config) { c.CatchUp = nil },
	} {
		config := n.Config
		change(&config)
		if s, err := admin.Open(n.Doors, config.Plane()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, %v, want %q", s, err, want)
		}
	}
}
