package simulation

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Like backgroundPart and episodes, for several regions.
const (
	farBackgroundPart = 10
	farEpisodes       = 3
)

// locate fills in the fields that follow from the rule and the key.
func (s *Subject) locate(l *limiter.Limiter) error {
	u, err := l.Locate(&limiter.Query{Rule: s.Rule, Key: []string{s.Key}})
	if err != nil {
		return fmt.Errorf("locate a subject: %w", err)
	}

	limit := u.Limits[0].Limit
	s.Limit = limit.Limit
	s.Partition = ring.PartitionOf(u.Hash.Hi)
	s.Counter.Subject, s.Counter.Counter = u.Hash.Hi, u.Hash.Lo^limit.ID
	s.Exact = u.Rule.Consistency == rules.Exact || s.Rule == "log-10s" || s.Rule == "leaky-10s"
	s.Global = u.Rule.Scope == rules.GlobalScope

	if !s.Exact {
		s.TTL = leaseTTL(s.Limit.Window)
	}

	return nil
}

// trickle checks random subjects at random nodes of random regions.
func (g *globe) trickle() {
	random := rand.New(rand.NewPCG(g.config.Seed, 7))
	rate := float64(g.config.Rate) / farBackgroundPart
	for g.now() < warmUp+g.config.Duration {
		time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		w := g.worlds[random.IntN(len(g.worlds))]
		node, subject := random.IntN(len(w.nodes)), random.IntN(len(g.subjects))
		g.workers.do(func() { w.check(node, 1, subject) })
	}
}

// place is a node in a region.
type place struct {
	world *World
	node  int
}

// episode loads one subject in one, some or all regions, for some of its windows, below or above its limit.
func (g *globe) episode(random *rand.Rand) {
	subject := g.hot[random.IntN(len(g.hot))]
	s := &g.subjects[subject]
	rate := float64(g.config.Rate) * (farBackgroundPart - 1) / farBackgroundPart / farEpisodes
	length := time.Duration(float64(s.Limit.Window) * (1.5 + 2*random.Float64()))
	if s.Limit.Window < 5*time.Second {
		length *= 3
	}

	demand := []float64{0.8, 2, 3, 4, 6, 10}[random.IntN(6)]
	cost := max(1, int64(demand*float64(s.Limit.Amount)/s.Limit.Window.Seconds()/rate))

	regions := random.Perm(len(g.worlds))
	switch random.IntN(6) {
	case 0:
		regions = regions[:1]
	case 1:
		regions = regions[:min(len(regions), 2+random.IntN(2))]
	case 2:
		regions = regions[:1+len(regions)/2]
	}

	var places []place
	for _, r := range regions {
		w := g.worlds[r]
		places = append(places, place{w, random.IntN(len(w.nodes))})
		if random.IntN(4) == 0 {
			places = append(places, place{w, random.IntN(len(w.nodes))})
		}
	}

	partner := -1
	if random.IntN(4) == 0 {
		if other := g.hot[random.IntN(len(g.hot))]; g.subjects[other].Rule != s.Rule {
			partner = other
		}
	}

	g.addBusy(s.Rule, 1)
	defer g.addBusy(s.Rule, -1)

	end := min(g.now()+length, warmUp+g.config.Duration)
	for g.now() < end {
		time.Sleep(time.Duration((0.5 + random.Float64()) / rate * float64(time.Second)))
		p, c := places[random.IntN(len(places))], 1+random.Int64N(2*cost)
		if random.IntN(2) == 0 {
			c = 1 + c/20 // small costs spend the rest of a share, too
		}

		if partner >= 0 && random.IntN(2) == 0 {
			g.workers.do(func() { p.world.check(p.node, c, subject, partner) })
			continue
		}

		g.workers.do(func() { p.world.check(p.node, c, subject) })
	}
}
