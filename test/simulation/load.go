package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

const (
	// background is the part of the checks that are about any subject, at any node.
	backgroundPart = 5 // one in so many
	// episodes is how many subjects are asked about with a will at once.
	episodes = 6
	// hotKeys is how many subjects of each rule are, now and then.
	hotKeys = 6
	// perShare is how many units each node has of the larger limits: enough for leases, which begin at ten.
	perShare = 20
)

// ruleNames are the rules: algorithm, window, and how they are decided.
var ruleNames = []string{
	"fixed-1s", "fixed-10s", "fixed-30s", "fixed-60s", "bucket-10s", "bucket-60s", "sliding-10s", "sliding-60s",
	"exact-10s", "exact-bucket-10s", "small-10s", "log-10s", "leaky-10s",
}

// Rules are those that a cluster of so many nodes is asked about, as text.
func Rules(nodes int) string {
	large := nodes * perShare
	return fmt.Sprintf(`version: 1
rules:
  - {name: fixed-1s, key: [fixed_1s], limits: [{limit: %[2]d, per: 1s, algorithm: fixed-window}]}
  - {name: fixed-10s, key: [fixed_10s], limits: [{limit: %[1]d, per: 10s, algorithm: fixed-window}]}
  - {name: fixed-30s, key: [fixed_30s], limits: [{limit: %[1]d, per: 30s, algorithm: fixed-window}]}
  - {name: fixed-60s, key: [fixed_60s], limits: [{limit: %[1]d, per: 1m, algorithm: fixed-window}]}
  - {name: bucket-10s, key: [bucket_10s], limits: [{limit: %[1]d, per: 10s, algorithm: token-bucket}]}
  - {name: bucket-60s, key: [bucket_60s], limits: [{limit: %[1]d, per: 1m, algorithm: token-bucket}]}
  - {name: sliding-10s, key: [sliding_10s], limits: [{limit: %[1]d, per: 10s, algorithm: sliding-window}]}
  - {name: sliding-60s, key: [sliding_60s], limits: [{limit: %[1]d, per: 1m, algorithm: sliding-window}]}
  - {name: exact-10s, key: [exact_10s], consistency: exact, limits: [{limit: %[1]d, per: 10s, algorithm: fixed-window}]}
  - {name: exact-bucket-10s, key: [exact_bucket_10s], consistency: exact, limits: [{limit: 40, per: 10s, algorithm: token-bucket}]}
  - {name: small-10s, key: [small_10s], limits: [{limit: 40, per: 10s, algorithm: fixed-window}]}
  - {name: log-10s, key: [log_10s], limits: [{limit: 50, per: 10s, algorithm: sliding-window-log}]}
  - {name: leaky-10s, key: [leaky_10s], limits: [{limit: 40, per: 10s, algorithm: leaky-bucket}]}
`, large, large/2)
}

// attributeOf is the key attribute of a rule: each has its own, so that a check names the subjects it is about.
func attributeOf(rule string) string { return strings.ReplaceAll(rule, "-", "_") }

// Load asks about subjects for a time: now and then about any of them, at any node, and with a will about some, at a few
// nodes, for some of their windows, with less than their limits allow, or more.
type Load struct {
	Ledger *Ledger // whose Subjects are asked about; see List
	Rate   int     // checks a second, of all nodes together
	Random *rand.Rand
	// Nodes is how many nodes may be asked.
	Nodes func() int
	// Ask asks a node, of those, if it is there, about a subject. It may wait for the answer.
	Ask func(node, subject int, cost int64)

	hot int
}

// List lists so many subjects, or a few dozen if that is more, for rules that l goes by, and returns how many of the first are
// asked about so often that their limits are reached.
func (l *Ledger) List(total int, by *limiter.Limiter) (hot int, err error) {
	hot = hotKeys * len(ruleNames)
	for i := range max(total, hot) {
		s := Subject{Rule: ruleNames[i%len(ruleNames)], Key: fmt.Sprint("k", i/len(ruleNames))}
		if err := s.locate(by); err != nil {
			return 0, err
		}
		l.Subjects = append(l.Subjects, s)
	}
	return hot, nil
}

// Query is a check of a subject.
func (s *Subject) Query(cost int64) limiter.Query {
	return limiter.Query{
		Costs:      []limiter.UnitCost{{Unit: rules.Requests, Cost: cost}},
		Attributes: []rules.Attribute{{Name: attributeOf(s.Rule), Value: s.Key}},
	}
}

// Run asks until a time, counted as in the ledger, and returns when all is answered.
func (l *Load) Run(until time.Duration) {
	var load, asked sync.WaitGroup
	end := l.Ledger.Start.Add(until)
	l.hot = hotKeys * len(ruleNames)
	ask := func(node, subject int, cost int64) { asked.Go(func() { l.Ask(node, subject, cost) }) }
	for i := range episodes + 1 {
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

// trickle asks once about any subject at any node.
func (l *Load) trickle(random *rand.Rand, ask func(node, subject int, cost int64)) {
	rate := float64(l.Rate) / backgroundPart
	time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
	ask(random.IntN(l.Nodes()), random.IntN(len(l.Ledger.Subjects)), 1)
}

// episode asks about one subject at a few nodes.
func (l *Load) episode(random *rand.Rand, end time.Time, ask func(node, subject int, cost int64)) {
	subject := random.IntN(l.hot)
	s := &l.Ledger.Subjects[subject]
	rate := float64(l.Rate) * (backgroundPart - 1) / backgroundPart / episodes
	windows := 1.5 + 1.5*random.Float64()
	if s.Limit.Window < 5*time.Second {
		windows *= 5
	}
	last := time.Now().Add(time.Duration(float64(s.Limit.Window) * windows))
	demand := []float64{0.5, 1.4, 1.6, 2, 4}[random.IntN(5)]
	cost := max(1, int64(demand*float64(s.Limit.Amount)/s.Limit.Window.Seconds()/rate))
	nodes := make([]int, 1+random.IntN(4))
	for i := range nodes {
		nodes[i] = random.IntN(l.Nodes())
	}
	for now := time.Now(); now.Before(last) && now.Before(end); now = time.Now() {
		// Even enough that the demand lasts, and not so even that all is in step.
		time.Sleep(time.Duration((0.5 + random.Float64()) / rate * float64(time.Second)))
		ask(nodes[random.IntN(len(nodes))], subject, 1+random.Int64N(2*cost))
	}
}
