package simulation

import (
	"errors"
	"time"
)

// Bounds of a Config.
const (
	minNodes = 3
	maxNodes = 1024
	// maxMinutes bounds a run's ledger, which takes some 70 bytes of memory per check.
	maxMinutes = 120
	maxRate    = 5000
	maxRegions = 32
	// maxInAll bounds the nodes of all regions together.
	maxInAll = 1024
)

// Config describes a simulation.
type Config struct {
	Seed     uint64
	Nodes    int           // per region, 3…1024
	Duration time.Duration // of the load; a few seconds without load follow
	// Rate is the approximate number of checks per second of virtual time, over all nodes of all regions.
	Rate int
	// Subjects is the number of subjects that are checked now and then. A few dozen of them are also checked often enough
	// to reach their limits.
	Subjects int
	// Calm is the approximate time between two faults inside regions, over all regions; 0 means no such faults.
	Calm time.Duration
	// Regions is the number of regions, 2…32, each with Nodes nodes.
	Regions int
	// FarCalm is the approximate time between two faults of the network between regions, Changes that between two changes
	// of the rules or of the set of regions; 0 means none.
	FarCalm, Changes time.Duration
	// Sabotage breaks the system on purpose, to test that the checkers notice.
	Sabotage Sabotage
}

// Sabotage is a way to break the system on purpose.
type Sabotage uint8

// The kinds of sabotage.
const (
	NoSabotage Sabotage = iota
	// LendForNothing does not debit loans at the lender.
	LendForNothing
	// LendUnconfirmed sends loans to other regions before any follower has acknowledged them.
	LendUnconfirmed
	// RaiseAtOnce makes regions use only the newest version of the rules.
	RaiseAtOnce
	// StayUntilRecord makes regions use only recorded versions, although others may already use a later one.
	StayUntilRecord
)

// DefaultConfig returns the Config of a small run.
func DefaultConfig() Config {
	return Config{
		Seed: 1, Regions: 3, Nodes: 6, Duration: time.Minute, Rate: 60, Subjects: 150, Calm: 8 * time.Second,
		FarCalm: 8 * time.Second, Changes: 15 * time.Second,
	}
}

// Validate returns an error that names the field out of range.
func (c *Config) Validate() error {
	switch {
	case c.Nodes < minNodes || c.Nodes > maxNodes:
		return errors.New("simulation: Nodes is not from 3 to 1024")
	case c.Duration <= 0 || c.Duration > maxMinutes*time.Minute:
		return errors.New("simulation: Duration is not above 0 and at most 120 minutes")
	case c.Rate < 1 || c.Rate > maxRate:
		return errors.New("simulation: Rate is not from 1 to 5000")
	case c.Subjects < 1 || c.Subjects > 1<<16:
		return errors.New("simulation: Subjects is not from 1 to 65536")
	case c.Regions < 2 || c.Regions > maxRegions || c.Regions*c.Nodes > maxInAll:
		return errors.New("simulation: Regions is not from 2 to 32, or Regions × Nodes is above 1024")
	case c.FarCalm < 0 || c.Changes < 0:
		return errors.New("simulation: FarCalm or Changes is negative")
	case c.Calm < 0:
		return errors.New("simulation: Calm is negative")
	}

	return nil
}
