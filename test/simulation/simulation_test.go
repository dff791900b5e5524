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
)

var (
	seedFlag    = flag.Uint64("seed", 0, "run only this seed")
	seedsFlag   = flag.Int("seeds", 2, "how many seeds are run")
	nodesFlag   = flag.Int("nodes", DefaultConfig().Nodes, "how many nodes a region has")
	minutesFlag = flag.Float64("minutes", 1, "how many minutes are simulated")
	rateFlag    = flag.Int("rate", DefaultConfig().Rate, "checks a second of all nodes together")
	storyFlag   = flag.String("story", "", "the rule and the key of a subject whose story is printed")
	calmFlag    = flag.Duration("calm", DefaultConfig().Calm, "about the time from one fault inside of a region to the next")
	regionsFlag = flag.Int("regions", DefaultConfig().Regions, "how many regions are simulated")
	farCalmFlag = flag.Duration("farcalm", DefaultConfig().FarCalm, "about the time from one fault between regions to the next")
	changesFlag = flag.Duration("changes", DefaultConfig().Changes, "about the time from one change of rules or regions to the next")
)

// A run is one thing after another: a second processor only makes it wait for wakeups.
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
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// seeds are those to be run.
func seeds(count int) (list []uint64) {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	for i := range count {
		list = append(list, uint64(i+1))
	}
	return list
}

// judge runs one seed and reports what was broken.
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

// G8, and all others, in random runs of several regions. In every second one nothing goes wrong inside of regions, so that
// the bound is exact.
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
