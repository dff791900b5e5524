package simulation

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "run only this seed")
	seedsFlag   = flag.Int("seeds", 2, "number of seeds to run")
	nodesFlag   = flag.Int("nodes", DefaultConfig().Nodes, "number of nodes in each region")
	minutesFlag = flag.Float64("minutes", 1, "minutes to simulate")
	rateFlag    = flag.Int("rate", DefaultConfig().Rate, "checks per second, over all nodes")
	storyFlag   = flag.String("story", "", "rule and key of a subject whose history to print")
	calmFlag    = flag.Duration("calm", DefaultConfig().Calm, "approximate time between two faults inside regions")
	regionsFlag = flag.Int("regions", DefaultConfig().Regions, "number of regions to simulate")
	farCalmFlag = flag.Duration("farcalm", DefaultConfig().FarCalm, "approximate time between two faults between regions")
	changesFlag = flag.Duration("changes", DefaultConfig().Changes, "approximate time between two changes of rules or regions")
)

// A run is sequential: a second processor would only add wakeups to wait for.
func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(200)
	os.Exit(m.Run())
}

// run simulates on virtual time.
func run(t *testing.T, c Config) *Ledger {
	t.Helper()
	var l *Ledger
	var err error
	synctest.Test(t, func(*testing.T) { l, err = Run(c) })
	expect.NoError(t, err)
	return l
}

// seeds returns the seeds to run.
func seeds(count int) (list []uint64) {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	for i := range count {
		list = append(list, uint64(i+1))
	}
	return list
}

// judge runs one seed and reports the violations.
func judge(t *testing.T, c Config) {
	t.Helper()
	began := time.Now()
	l := run(t, c)
	took := time.Since(began)
	broken := l.Judge()
	checks := len(l.Checks)
	for _, region := range l.Regions {
		checks += len(region.Checks)
	}
	t.Logf("%d checks, %d events in %v, judged in %v: %+v", checks, l.Events, took.Round(time.Millisecond), (time.Since(began) - took).Round(time.Millisecond), l.Counts)
	if rule, key, ok := strings.Cut(*storyFlag, " "); ok {
		if err := l.WriteStory(os.Stdout, rule, key); err != nil {
			t.Error(err)
		}
	}
	for i, v := range broken {
		if i == 10 {
			t.Errorf("and %d more", len(broken)-i)
			break
		}
		t.Errorf("seed %d: %v", c.Seed, v)
	}
}

// G8 and all other guarantees hold in random runs of several regions. Every second run has no faults inside regions, so
// that the bound is exact.
func TestG8_Simulation(t *testing.T) {
	if !debited {
		t.Skip("loans are not debited in this build")
	}
	c, count := DefaultConfig(), *seedsFlag
	c.Regions, c.FarCalm, c.Changes = *regionsFlag, *farCalmFlag, *changesFlag
	c.Nodes, c.Duration, c.Rate, c.Calm = *nodesFlag, time.Duration(*minutesFlag*float64(time.Minute)), *rateFlag, *calmFlag
	if testing.Short() {
		count = 1
	}
	for _, seed := range seeds(count) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			c := c
			if c.Seed = seed; seed%2 == 0 {
				c.Calm = 0
			}
			judge(t, c)
		})
	}
}
