package simulation

import (
	"errors"
	"time"
)

// Bounds of a Config.
const (
	minNodes = 3
	maxNodes = 1024
	// maxMinutes bounds the record of a run, which is kept in memory: some 70 bytes a check.
	maxMinutes = 120
	maxRate    = 5000
	maxRegions = 32
	// maxInAll bounds nodes of all regions.
	maxInAll = 1024
)

// Config says what is simulated.
type Config struct {
	Seed     uint64
	Nodes    int           // 3…1024
	Duration time.Duration // of the load; a few seconds of quiet follow
	// Rate is about how many checks all nodes are asked together in a second of virtual time.
	Rate int
	// Subjects is how many subjects are asked about now and then, beside the few dozen that are asked so often that their
	// limits are reached.
	Subjects int
	// Calm is about how long it is from one fault to the next; 0: no faults.
	Calm time.Duration
	// Regions is how many regions there are, 2…32, each with so many Nodes. Rate is that of all together, and Calm the time
	// from one fault inside any of them to the next.
	Regions int
	// FarCalm is about how long it is from one fault between regions to the next, Changes that from one change of the rules or
	// the set of regions to the next; 0: there are none.
	FarCalm, Changes time.Duration
	// Sabotage breaks the system on purpose, to see whether the checkers notice.
	Sabotage Sabotage
}

// Sabotage is what is broken on purpose.
type Sabotage uint8

// The kinds of sabotage.
const (
	NoSabotage Sabotage = iota
	// LendForNothing: what a region lends is not debited there.
	LendForNothing
	// LendUnconfirmed: other regions are told of loans that no follower knows of.
	LendUnconfirmed
	// RaiseAtOnce: regions go by the newest version of the rules alone.
	RaiseAtOnce
	// StayUntilRecord: regions go by what is recorded alone, though others may go by a later record already.
	StayUntilRecord
)

// DefaultConfig is a small run.
func DefaultConfig() Config {
	return Config{
		Seed: 1, Regions: 3, Nodes: 6, Duration: time.Minute, Rate: 60, Subjects: 150, Calm: 8 * time.Second,
		FarCalm: 8 * time.Second, Changes: 15 * time.Second,
	}
}

// Validate names what is out of bounds.
func (c *Config) Validate() error {
	switch {
	case c.Nodes < minNodes || c.Nodes > maxNodes:
		return errors.New("simulation: Nodes is not from 3 to 1024")
	case c.Duration <= 0 || c.Duration > maxMinutes*time.Minute:
		return errors.New("simulation: Duration is not above 0, or above 120 minutes")
	case c.Rate < 1 || c.Rate > maxRate:
		return errors.New("simulation: Rate is not from 1 to 5000")
	case c.Subjects < 1 || c.Subjects > 1<<16:
		return errors.New("simulation: Subjects is not from 1 to 65536")
	case c.Regions < 2 || c.Regions > maxRegions || c.Regions*c.Nodes > maxInAll:
		return errors.New("simulation: Regions is not from 2 to 32, or there are more than 1024 nodes in all")
	case c.FarCalm < 0 || c.Changes < 0:
		return errors.New("simulation: FarCalm or Changes is below 0")
	case c.Calm < 0:
		return errors.New("simulation: Calm is below 0")
	}
	return nil
}
