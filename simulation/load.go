package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/rules"
)

const (
	// background is the part of the checks that are about any subject, at any node.
	background = 5 // one in so many
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

// compileRules makes the rules for so many nodes.
func compileRules(nodes int) (*rules.Set, error) {
	large := nodes * perShare
	text := fmt.Sprintf(`
version: 1
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
	doc, err := rules.Parse([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("parse the rules: %w", err)
	}
	set, err := rules.Compile(doc, 1)
	if err != nil {
		return nil, fmt.Errorf("compile the rules: %w", err)
	}
	return set, nil
}

// attributeOf is the key attribute of a rule: each has its own, so that a check names the subjects it is about.
func attributeOf(rule string) string { return strings.ReplaceAll(rule, "-", "_") }

// leaseTTL is how long leases of a limit last.
func leaseTTL(window time.Duration) time.Duration {
	return min(max(window/20, 50*time.Millisecond), 5*time.Second)
}

// subjects lists what is asked about: first the hot ones.
func (w *World) subjects() error {
	total := max(w.cfg.Subjects, hotKeys*len(ruleNames))
	for i := range total {
		s := Subject{Rule: ruleNames[i%len(ruleNames)], Key: fmt.Sprint("k", i/len(ruleNames))}
		if err := s.locate(w.nodes[0].process.limiter); err != nil {
			return err
		}
		if i < hotKeys*len(ruleNames) {
			w.hot = append(w.hot, i)
		}
		w.inside[s.Partition] = append(w.inside[s.Partition], i)
		w.byKey[s.Counter] = i
		w.ledger.Subjects = append(w.ledger.Subjects, s)
	}
	return nil
}

// drive runs the load and the faults until the time is over, and then some quiet.
func (w *World) drive() {
	w.group.Go(w.trickle)
	for range episodes {
		random := rand.New(rand.NewPCG(w.load.Uint64(), 6))
		w.group.Go(func() {
			for w.now() < w.cfg.Duration {
				w.episode(random)
			}
		})
	}
	if w.cfg.Calm > 0 {
		w.mu.Lock()
		w.brew()
		w.mu.Unlock()
	}
	time.Sleep(w.cfg.Duration + 5*time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.close()
}

// close ends the record. It is called under the mutex.
func (w *World) close() {
	w.ledger.End = w.now()
	for _, n := range w.nodes {
		if !n.contact {
			until := w.now()
			if n.healed > 0 {
				until = n.healed
			}
			w.ledger.cut(n, n.cutAt, until)
		}
	}
}

// trickle asks about any subject at any node.
func (w *World) trickle() {
	random := rand.New(rand.NewPCG(w.cfg.Seed, 7))
	rate := float64(w.cfg.Rate) / background
	for w.now() < w.cfg.Duration {
		time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		node, subject := random.IntN(len(w.nodes)), random.IntN(len(w.ledger.Subjects))
		w.crew.do(func() { w.check(node, 1, subject) })
	}
}

// episode asks about one subject at a few nodes for some of its windows: with less than its limit allows, or more.
func (w *World) episode(random *rand.Rand) {
	subject := w.hot[random.IntN(len(w.hot))]
	s := &w.ledger.Subjects[subject]
	rate := float64(w.cfg.Rate) * (background - 1) / background / episodes
	windows := 1.5 + 1.5*random.Float64()
	if s.Limit.Window < 5*time.Second {
		windows *= 5
	}
	length := time.Duration(float64(s.Limit.Window) * windows)
	demand := []float64{0.5, 1.4, 1.6, 2, 4}[random.IntN(5)]
	cost := max(1, int64(demand*float64(s.Limit.Amount)/s.Limit.Window.Seconds()/rate))
	nodes := make([]int, 1+random.IntN(4))
	for i := range nodes {
		nodes[i] = random.IntN(len(w.nodes))
	}
	if random.IntN(3) == 0 {
		w.mu.Lock()
		nodes[0] = max(0, w.holders[s.Partition].node)
		w.mu.Unlock()
	}
	partner := -1
	if random.IntN(4) == 0 {
		if other := w.hot[random.IntN(len(w.hot))]; w.ledger.Subjects[other].Rule != s.Rule {
			partner = other
		}
	}
	end := min(w.now()+length, w.cfg.Duration)
	for w.now() < end {
		// Even enough that the demand lasts, and not so even that all is in step.
		time.Sleep(time.Duration((0.5 + random.Float64()) / rate * float64(time.Second)))
		node, c := nodes[random.IntN(len(nodes))], 1+random.Int64N(2*cost)
		if partner >= 0 && random.IntN(2) == 0 {
			w.crew.do(func() { w.check(node, c, subject, partner) })
			continue
		}
		w.crew.do(func() { w.check(node, c, subject) })
	}
}

// check asks a node, if it is there, about one subject or several of different rules, and notes what came of it.
func (w *World) check(node int, cost int64, subjects ...int) {
	q := limiter.Query{Costs: []limiter.UnitCost{{Unit: rules.Requests, Cost: cost}}}
	for _, i := range subjects {
		s := &w.ledger.Subjects[i]
		q.Attributes = append(q.Attributes, rules.Attribute{Name: attributeOf(s.Rule), Value: s.Key})
	}
	p, began, shares := w.ready(node, subjects)
	if p == nil {
		return
	}
	var a limiter.Answer
	err := p.limiter.Check(&q, &a)
	w.mu.Lock()
	gone, ended := !p.alive, w.now()
	for k, i := range subjects {
		shares[k] = max(shares[k], p.share(&w.ledger.Subjects[i]))
	}
	w.mu.Unlock()
	if gone {
		return // nobody got the answer
	}
	if err != nil {
		w.ledger.fail("a check of %v at node %d at %v failed: %v", q.Attributes, node, began, err)
		return
	}
	for k, i := range subjects {
		w.ledger.note(Check{
			Began: began, Ended: ended, Node: node, Subject: i, Cost: cost, Share: shares[k],
			Admitted: a.Allowed, Joint: len(subjects) > 1, By: a.DecidedBy,
		})
	}
}

// ready is the process of a node that is there, and what it may spend by itself of each subject.
func (w *World) ready(node int, subjects []int) (p *process, now time.Duration, shares []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p = w.nodes[node].process
	if !p.alive || !p.ready || w.closed || !p.ruling() {
		return nil, 0, nil
	}
	for _, i := range subjects {
		s := &w.ledger.Subjects[i]
		shares = append(shares, p.share(s))
		if p.phases[s.Partition] == held {
			p.touchLocked()
		}
	}
	return p, w.now(), shares
}

// share is what p may spend of a limit by itself.
func (p *process) share(s *Subject) int64 {
	if p.view == nil {
		return 0
	}
	return localcache.Share(p.most(s), len(p.view.to.Members()), p.view.to.Rank(p.id))
}
