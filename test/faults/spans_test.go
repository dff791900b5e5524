//go:build faults

package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// spanCheck computes what a bucket or a sliding window may admit: over any span
// D, its capacity and what its rate gives in D plus the life of a lease. A
// sliding-window counter admits no more than that either: with L its limit and
// W its window, the parts of the first and the last window that a span touches
// admit together at most L + L × (part of the last one), and each window
// between them at most L.
type spanCheck struct{ promise }

// stream is the hits taken from one counter, or from one node's share of it.
type stream struct {
	what     string
	capacity int64
	limit    int64 // per window
	ttl      time.Duration
	slack    int64
	hits     []hit
}

// check judges the admitted hits of one subject.
func (c *spanCheck) check(hits []hit) error {
	c.see(hits)
	for _, s := range c.streams(hits) {
		if err := s.check(c); err != nil {
			return err
		}
	}
	return nil
}

// streams splits hits by the counter they were taken from. Excused hits are in none.
func (c *spanCheck) streams(hits []hit) []*stream {
	r := c.rule
	// A copy carries the age of its counters, and a partly owed unit counts as a whole one.
	whole := stream{what: "in all", capacity: r.capacity(), limit: r.limit, ttl: r.ttl(), slack: 1}
	part := stream{capacity: c.share(r.capacity()), limit: c.share(r.limit), slack: 1}
	begins := c.begins()
	lives := make([]*stream, len(begins)+1)
	for i := range lives {
		s := whole
		lives[i] = &s
	}
	alone := map[string]*stream{}
	for _, h := range hits {
		if h.by == "fallback" || h.by == "standby" {
			what := fmt.Sprintf("node %d, by %s", h.node+1, h.by)
			if h.by == "standby" {
				// The client does not know which standby; a new one exists only after another
				// fault.
				what = fmt.Sprintf("by the standby after fault %d", c.faultsBefore(h.got))
			}
			if alone[what] == nil {
				s := part
				s.what = what
				alone[what] = &s
			}
			alone[what].hits = append(alone[what].hits, h)
			continue
		}
		life := 0
		for life < len(begins) && h.sent > begins[life] {
			life++
		}
		if c.excuseOf(h) == none {
			lives[life].hits = append(lives[life].hits, h)
		}
	}
	for _, s := range alone {
		lives = append(lives, s)
	}
	return lives
}

// faultsBefore returns how many faults before a time may have given the subject another owner.
func (p *promise) faultsBefore(at int64) (n int) {
	for i := range p.faults {
		if f := &p.faults[i]; f.from <= at && f.kind != apart && f.kind != stepped {
			n++
		}
	}
	return n
}

// begins returns the times from which the counters may be new ones.
func (c *spanCheck) begins() (list []int64) {
	for _, f := range c.restarts() {
		list = append(list, f.made)
	}
	if c.rule.algorithm == "sliding-window" {
		for i := range c.faults {
			if f := &c.faults[i]; f.kind == stepped && c.concerns(f) {
				list = append(list, f.made)
			}
		}
	}
	slices.Sort(list)
	return list
}

// check judges all spans that begin when a hit was sent and end when one was
// answered: the hits in between were certainly taken in them.
func (s *stream) check(c *spanCheck) error {
	slices.SortFunc(s.hits, func(a, b hit) int { return int(a.got - b.got) })
	per := int64(c.rule.per)
	for i := range s.hits {
		from, sum := s.hits[i].sent, int64(0)
		for _, h := range s.hits[i:] {
			if h.sent < from {
				continue
			}
			sum += h.cost
			d := h.got - from
			if (sum-s.capacity-s.slack)*per > s.limit*(d+int64(s.ttl)) {
				return fmt.Errorf("%s: %d admitted in %v from %s on, at most %d + %d in %v may be: %s", s.what, sum, time.Duration(d),
					time.Unix(0,
						from+c.wall).UTC().Format("15:04:05.000"), s.capacity, s.limit,
					time.Duration(per), ways(s.hits[i:],
						from, h.got))
			}
		}
	}
	return nil
}

// ways returns who decided the hits of a span.
func ways(hits []hit, from, to int64) string {
	n := map[string]int64{}
	for _, h := range hits {
		if h.sent >= from && h.got <= to {
			n[fmt.Sprintf("%s at %d", h.by, h.node+1)] += h.cost
		}
	}
	return fmt.Sprint(n)
}

func TestCheckSpans(t *testing.T) {
	const second = int64(time.Second)
	hits := func(n int, by string, node int, at, every int64) (list []hit) {
		for i := range int64(n) {
			list = append(list, hit{by: by, node: node, cost: 1, sent: at + i*every, got: at + i*every + 1})
		}
		return list
	}
	join := func(lists ...[]hit) []hit { return slices.Concat(lists...) }
	done := func(kind faultKind, node int) []fault {
		return []fault{{kind: kind, node: node, from: 15 * second, made: 15 * second, to: 40 * second}}
	}
	bucket := rule{name: "b", algorithm: "token-bucket", limit: 100, burst: 20, per: 10 * time.Second, hybrid: true}
	exact := rule{name: "l", algorithm: "leaky-bucket", limit: 100, burst: 20, per: 10 * time.Second, hybrid: true}
	slide := rule{name: "s", algorithm: "sliding-window", limit: 100, per: 10 * time.Second, hybrid: true}
	for _, test := range []struct {
		name   string
		rule   *rule
		hits   []hit
		faults []fault
		wrong  string
	}{
		{"a burst, then the rate", &bucket,
			join(hits(20, "owner", 0, second, 1), hits(50, "lease", 1, second+second/10, second/10)),
			nil, ""},
		{"what leases add", &bucket, hits(25, "lease", 0, second, 1), nil, ""}, // half a second, and one
		{"more than they add", &bucket, hits(27, "lease", 0, second, 1), nil, "in all: 27 admitted"},
		{"much later", &bucket,
			join(hits(20, "owner", 0, second, 1), hits(27, "lease", 0, 30*second, 1)), nil,
			"in all: 27 admitted"},
		{"a leaky bucket has no leases", &exact, hits(22, "forward", 0, second, 1), nil, "in all: 22 admitted"},
		{"a leaky bucket", &exact, hits(21, "forward", 0, second, 1), nil, ""},
		{"faster than the rate", &bucket, hits(200, "lease", 0, second, second/12), nil, "in all"},
		{"a sliding window", &slide,
			join(hits(100, "owner", 0, 9*second, 1), hits(100, "owner", 0, 10*second, second/10)), nil,
			""},
		{"a sliding window that turns", &slide,
			join(hits(100, "owner", 0, 9*second, 1), hits(100, "owner", 0, 10*second, second/50)), nil,
			"in all"},
		{"a share", &bucket,
			join(hits(20, "owner", 1, 16*second, 1), hits(7, "fallback", 0, 16*second, 1)),
			done(cutOff, 0), ""},
		{"more than a share", &bucket, hits(9, "fallback", 0, 16*second, 1), done(cutOff, 0),
			"by fallback: 9 admitted"},
		{"killed, forgotten", &bucket,
			join(hits(20, "owner", 0, 15*second-100, 1), hits(20, "owner", 1, 18*second, 1)),
			done(killed, 0), ""},
		{"another killed", &bucket,
			join(hits(20, "owner", 0, 15*second-100, 1), hits(20, "owner", 0, 15*second+second/2, 1)),
			done(killed, 1), "in all"},
		{"begun anew", &bucket,
			join(hits(20, "owner", 0, 15*second-100, 1), hits(20, "owner", 1, 15*second+second/10, 1)),
			done(together, 0), ""},
		{"stepped", &slide,
			join(hits(100, "owner", 0, 14*second, 1), hits(100, "owner", 0, 16*second, 1)),
			done(stepped, 0), ""},
		{"another stepped", &slide,
			join(hits(100, "owner", 0, 14*second, 1), hits(100, "owner", 0, 16*second, 1)),
			done(stepped, 1), "in all"},
	} {
		c := spanCheck{promise{rule: test.rule, nodes: 3, faults: test.faults}}
		err := c.check(test.hits)
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: have %v, want %q", test.name, err, test.wrong)
		}
	}
}
