package simulation

import (
	"testing"
	"time"
)

// The checkers notice each sabotage.
func TestSabotageIsFound(t *testing.T) {
	if !debited {
		t.Skip("loans are not debited in this build")
	}
	tests := []struct {
		name     string
		sabotage Sabotage
		first    uint64 // the first seed; where many fail to find it, one that does
	}{
		{"loans are not debited", LendForNothing, 101},
		{"loans are not confirmed", LendUnconfirmed, 101},
		{"shares are raised at once", RaiseAtOnce, 101},
		{"the old division stays until the record", StayUntilRecord, 108},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(10) {
				c := DefaultConfig()
				c.Seed, c.Calm, c.FarCalm, c.Changes, c.Rate, c.Sabotage = tt.first+seed, 0, 0, 3*time.Second, 120, tt.sabotage
				for _, v := range run(t, c).Judge() {
					if v.Guarantee == "G8" {
						t.Logf("seed %d: %v", c.Seed, v)
						return
					}
				}
			}
			t.Errorf("the checkers found no violation of G8")
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, break_ := range map[string]func(*Config){
		"nodes": func(c *Config) { c.Nodes = 2 }, "one region": func(c *Config) { c.Regions = 1 }, "many nodes": func(c *Config) { c.Nodes = 2000 },
		"duration": func(c *Config) { c.Duration = 0 }, "rate": func(c *Config) { c.Rate = 0 },
		"subjects": func(c *Config) { c.Subjects = 0 }, "calm": func(c *Config) { c.Calm = -1 },
		"regions": func(c *Config) { c.Regions = 33 }, "nodes in all": func(c *Config) { c.Regions, c.Nodes = 20, 60 },
		"far calm": func(c *Config) { c.FarCalm = -1 }, "changes": func(c *Config) { c.Changes = -1 },
	} {
		c := DefaultConfig()
		if break_(&c); c.Validate() == nil {
			t.Errorf("%s: want an error", name)
		}
	}
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
