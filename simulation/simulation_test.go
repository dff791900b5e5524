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
	seedsFlag   = flag.Int("seeds", 5, "how many seeds are run")
	nodesFlag   = flag.Int("nodes", 60, "how many nodes are simulated")
	minutesFlag = flag.Float64("minutes", 1, "how many minutes are simulated")
	rateFlag    = flag.Int("rate", 130, "checks a second of all nodes together")
	storyFlag   = flag.String("story", "", "the rule and the key of a subject whose story is printed")
	calmFlag    = flag.Duration("calm", 8*time.Second, "about the time from one fault to the next")
)

// A run is one thing after another: a second processor only makes it wait for wakeups.
func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(200)
	os.Exit(m.Run())
}

func config() Config {
	c := DefaultConfig()
	c.Nodes, c.Duration, c.Rate, c.Calm = *nodesFlag, time.Duration(*minutesFlag*float64(time.Minute)), *rateFlag, *calmFlag
	return c
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

// G2, G3, G4, G5, G10 in random runs.
func TestG2_G3_G4_G5_Simulation(t *testing.T) {
	if !debited {
		t.Skip("grants are not debited in this build")
	}
	seeds := make([]uint64, 0, *seedsFlag)
	for i := range *seedsFlag {
		seeds = append(seeds, uint64(i+1))
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			c := config()
			c.Seed = seed
			began := time.Now()
			l := run(t, c)
			took := time.Since(began)
			broken := l.Judge()
			t.Logf("%d checks, %d events in %v, judged in %v: %+v", len(l.Checks), l.Events, took.Round(time.Millisecond), (time.Since(began) - took).Round(time.Millisecond), l.Counts)
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
				t.Errorf("seed %d: %v", seed, v)
			}
		})
	}
}
