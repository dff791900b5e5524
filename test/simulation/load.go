package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const (
	// One in backgroundPart checks is about a random subject at a random node.
	backgroundPart = 5
	// episodes is the number of subjects under load at any time.
	episodes = 6
	// hotKeys is the number of subjects of each rule that may come under load.
	hotKeys = 6
	// perShare is each node's share of the larger limits, in units: enough for
	// leases, which start at ten.
	perShare = 20
)

// ruleNames names the rules after algorithm, window and way of deciding.
var ruleNames = []string{
	"fixed-1s", "fixed-10s", "fixed-30s", "fixed-60s", "bucket-10s", "bucket-60s", "sliding-10s", "sliding-60s",
	"exact-10s", "exact-bucket-10s", "small-10s", "log-10s", "leaky-10s",
}

// Rules returns the rules document for a cluster of the given number of nodes.
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

// attributeOf returns the key attribute of a rule. Each rule has its own, so
// that a check applies only to the subjects it names.
func attributeOf(rule string) string { return strings.ReplaceAll(rule, "-", "_") }

// Load checks subjects for some time: a few checks are about random subjects at
// random nodes; most load some subjects at a few nodes, for some of their
// windows, below or above their limits.
type Load struct {
	Ledger *Ledger // Load checks its Subjects; see List
	Rate   int     // checks per second, over all nodes
	Random *rand.Rand
	// Nodes returns the number of nodes that may be asked.
	Nodes func() int
	// Ask sends a check to one of those nodes, if it is up. It may block until the answer.
	Ask func(node, subject int, cost int64)

	hot int
}

// List adds total subjects, or a few dozen if that is more, located with a
// limiter that has the rules. It returns how many of the first ones Load checks
// often enough to reach their limits.
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

// leaseTTL returns the life of a limit's leases.
func leaseTTL(window time.Duration) time.Duration {
	return min(max(window/20, 50*time.Millisecond), 5*time.Second)
}

// Query returns a check of subjects of different rules.
func (l *Ledger) Query(cost int64, subjects ...int) limiter.Query {
	q := limiter.Query{Costs: []limiter.UnitCost{{Unit: document.Requests, Cost: cost}}}
	for _, i := range subjects {
		s := &l.Subjects[i]
		q.Attributes = append(q.Attributes, rules.Attribute{Name: attributeOf(s.Rule), Value: s.Key})
	}
	return q
}

// Run sends checks until a time since the ledger's Start, and returns when all are answered.
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

// trickle checks a random subject at a random node, once.
func (l *Load) trickle(random *rand.Rand, ask func(node, subject int, cost int64)) {
	rate := float64(l.Rate) / backgroundPart
	time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
	ask(random.IntN(l.Nodes()), random.IntN(len(l.Ledger.Subjects)), 1)
}

// episode loads one subject at a few nodes.
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
		// Regular enough that demand lasts, but not so regular that all checks are in step.
		time.Sleep(time.Duration((0.5 + random.Float64()) / rate * float64(time.Second)))
		ask(nodes[random.IntN(len(nodes))], subject, 1+random.Int64N(2*cost))
	}
}
