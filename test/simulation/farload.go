package simulation

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// Like backgroundPart and episodes, for several regions.
const (
	farBackgroundPart = 10
	farEpisodes       = 3
)

// RegionsLoad is Load for several regions: it loads some subjects in one, some or all regions.
type RegionsLoad struct {
	Ledger *Ledger // RegionsLoad checks its Subjects; see ListShared
	Hot    int     // how many of the first ones it checks often
	Rate   int     // checks per second, over all nodes
	Random *rand.Rand
	// Nodes returns the number of nodes of a region that may be asked.
	Nodes func(region int) int
	// Ask sends a check of one subject, or of two of different rules, to one of
	// those nodes, if it is up.
	Ask func(region, node int, cost int64, subjects ...int)

	mu   sync.Mutex     // guards busy
	busy map[string]int // by rule: number of episodes in progress
}

// ListShared adds total subjects of an edition, or a few dozen if that is more,
// located with a limiter that has its rules. It returns how many of the first
// ones may be checked often enough to reach their limits.
func (l *Ledger) ListShared(total int, e *Edition, by *limiter.Limiter) (hot int, err error) {
	hot = hotKeys * len(e.rules)
	for i := range max(total, hot) {
		rule := &e.rules[i%len(e.rules)]
		s := Subject{Rule: rule.name, Key: fmt.Sprint("k", i/len(e.rules))}
		if err := s.locate(by); err != nil {
			return 0, err
		}
		s.Limit.Amount, s.Limit.Burst = int64(rule.amount), int64(rule.amount) // the node knows its region's share
		l.Subjects = append(l.Subjects, s)
	}
	return hot, nil
}

// Relocate finds the subjects of a region that was founded anew: its key is another one.
func (l *Ledger) Relocate(by *limiter.Limiter) error {
	for i := range l.Subjects {
		s := l.Subjects[i]
		if err := s.locate(by); err != nil {
			return err
		}
		l.Subjects[i].Partition, l.Subjects[i].Counter = s.Partition, s.Counter
	}
	return nil
}

// Run sends checks until a time since the ledger's Start, and returns when all are answered.
func (l *RegionsLoad) Run(until time.Duration) {
	var load, asked sync.WaitGroup
	end := l.Ledger.Start.Add(until)

	ask := func(region, node int, cost int64, subjects ...int) {
		asked.Go(func() { l.Ask(region, node, cost, subjects...) })
	}
	for i := range farEpisodes + 1 {
		random := rand.New(rand.NewPCG(l.Random.Uint64(), 6))
		load.Go(func() {
			for time.Now().Before(end) {
				if i == 0 {
					l.trickle(random, ask)
				} else {
					l.episode(random, end, ask)
				}
			}
		})
	}

	load.Wait()
	asked.Wait()
}

// IsBusy reports whether an episode loads a subject of a rule.
func (l *RegionsLoad) IsBusy(rule string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy[rule] > 0
}

func (l *RegionsLoad) addBusy(rule string, more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == nil {
		l.busy = map[string]int{}
	}
	l.busy[rule] += more
}

// trickle checks a random subject at a random node of a random region, once.
func (l *RegionsLoad) trickle(random *rand.Rand, ask func(region, node int, cost int64, subjects ...int)) {
	rate := float64(l.Rate) / farBackgroundPart
	time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
	region := random.IntN(len(l.Ledger.Regions))
	ask(region, random.IntN(l.Nodes(region)), 1, random.IntN(len(l.Ledger.Subjects)))
}

// place is a node in a region.
type place struct{ region, node int }

// episode loads one subject in one, some or all regions, for some of its
// windows, below or above its limit.
func (l *RegionsLoad) episode(
	random *rand.Rand, end time.Time, ask func(region, node int, cost int64, subjects ...int),
) {
	subject := random.IntN(l.Hot)
	s := &l.Ledger.Subjects[subject]
	rate := float64(l.Rate) * (farBackgroundPart - 1) / farBackgroundPart / farEpisodes
	length := time.Duration(float64(s.Limit.Window) * (1.5 + 2*random.Float64()))
	if s.Limit.Window < 5*time.Second {
		length *= 3
	}

	demand := []float64{0.8, 2, 3, 4, 6, 10}[random.IntN(6)]
	cost := max(1, int64(demand*float64(s.Limit.Amount)/s.Limit.Window.Seconds()/rate))
	places := l.places(random)

	partner := -1
	if random.IntN(4) == 0 {
		if other := random.IntN(l.Hot); l.Ledger.Subjects[other].Rule != s.Rule {
			partner = other
		}
	}

	l.addBusy(s.Rule, 1)
	defer l.addBusy(s.Rule, -1)

	last := time.Now().Add(length)
	for now := time.Now(); now.Before(last) && now.Before(end); now = time.Now() {
		time.Sleep(time.Duration((0.5 + random.Float64()) / rate * float64(time.Second)))
		p, c := places[random.IntN(len(places))], 1+random.Int64N(2*cost)
		if random.IntN(2) == 0 {
			c = 1 + c/20 // small costs spend the rest of a share, too
		}

		if partner >= 0 && random.IntN(2) == 0 {
			ask(p.region, p.node, c, subject, partner)
			continue
		}

		ask(p.region, p.node, c, subject)
	}
}

// places draws nodes of one, some or all regions.
func (l *RegionsLoad) places(random *rand.Rand) (places []place) {
	regions := random.Perm(len(l.Ledger.Regions))
	switch random.IntN(6) {
	case 0:
		regions = regions[:1]
	case 1:
		regions = regions[:min(len(regions), 2+random.IntN(2))]
	case 2:
		regions = regions[:1+len(regions)/2]
	}

	for _, r := range regions {
		places = append(places, place{r, random.IntN(l.Nodes(r))})
		if random.IntN(4) == 0 {
			places = append(places, place{r, random.IntN(l.Nodes(r))})
		}
	}

	return places
}
