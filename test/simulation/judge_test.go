package simulation

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
)

// madeLedger returns an artificial ledger that begins with a window: one
// subject with a limit of 100 in 10 s.
func madeLedger(kind algorithms.Kind) *Ledger {
	return &Ledger{
		Start: time.Unix(1_000_000, 0), End: time.Hour,
		Subjects: []Subject{{
			Rule: "rule", Key: "key", Partition: 7, TTL: 500 * time.Millisecond,
			Limit: algorithms.Limit{Kind: kind, Amount: 100, Burst: 100, Window: 10 * time.Second},
		}},
	}
}

const ms = time.Millisecond

// admit adds a check that was admitted and took a millisecond.
func (l *Ledger) admit(at time.Duration, node int, cost int64, by limiter.DecidedBy) {
	l.Checks = append(l.Checks,
		Check{Began: at, Ended: at + ms, Node: node, Cost: cost, Share: 10, Admitted: true, By: by})
}

type madeCase struct {
	name string
	kind algorithms.Kind
	have func(*Ledger)
	want string // the broken guarantee, or empty
}

func (c *madeCase) try(t *testing.T) {
	t.Helper()
	l := madeLedger(c.kind)
	c.have(l)
	broken := l.Judge()
	switch {
	case c.want == "" && len(broken) > 0:
		t.Errorf("%s: have %v, want none", c.name, broken)
	case c.want != "" && (len(broken) != 1 || broken[0].Guarantee != c.want):
		t.Errorf("%s: have %v, want one of %s", c.name, broken, c.want)
	}
}

// The checkers find violations in windows, and nothing else.
func TestJudgeWindows(t *testing.T) {
	lose := func(amount int64, anew bool) func(*Ledger) {
		return func(l *Ledger) {
			l.Losses = append(l.Losses, OwnerLoss{At: 5 * time.Second, Amount: amount, Anew: anew})
		}
	}
	both := func(fs ...func(*Ledger)) func(*Ledger) {
		return func(l *Ledger) {
			for _, f := range fs {
				f(l)
			}
		}
	}
	owner := func(at time.Duration, cost int64) func(*Ledger) {
		return func(l *Ledger) { l.admit(at, 1, cost, limiter.ByOwner) }
	}
	tests := []madeCase{
		{"the limit", algorithms.FixedWindow, both(owner(time.Second, 60), owner(9*time.Second, 40)), ""},
		{"one more", algorithms.FixedWindow, both(owner(time.Second, 60), owner(9*time.Second, 41)), "G2"},
		{"twice, in two windows", algorithms.FixedWindow,
			both(owner(9*time.Second, 100), owner(11*time.Second, 100)), ""},
		{"leases count", algorithms.FixedWindow,
			both(owner(time.Second, 60), func(l *Ledger) { l.admit(2*time.Second, 2, 41, limiter.ByLease) }),
			"G2"},
		{"in doubt: the next window", algorithms.FixedWindow,
			both(owner(time.Second, 100), owner(10*time.Second-ms/2, 50), owner(11*time.Second, 50)),
			""},
		{"in doubt: one window or the other", algorithms.FixedWindow,
			both(owner(time.Second, 80), owner(10*time.Second-ms/2, 50), owner(11*time.Second, 71)),
			"G2"},
		{"forgotten", algorithms.FixedWindow,
			both(owner(time.Second, 100), owner(7*time.Second, 30), lose(30, false)), ""},
		{"more than forgotten", algorithms.FixedWindow,
			both(owner(time.Second, 100), owner(7*time.Second, 31), lose(30, false)), "G5"},
		{"begun anew", algorithms.FixedWindow,
			both(owner(time.Second, 100), owner(7*time.Second, 100), lose(0, true)), ""},
		{"more than anew", algorithms.FixedWindow,
			both(owner(time.Second, 100), owner(7*time.Second, 101), lose(0, true)), "G5"},
		{"a standby", algorithms.FixedWindow, both(owner(time.Second, 100), func(l *Ledger) {
			l.StandbyActs = append(l.StandbyActs, StandbyAct{At: 2 * time.Second, Node: 3, Cost: 10, Share: 10})
			l.admit(2*time.Second-ms/2, 2, 10, limiter.ByStandby)
		}), ""},
		{"a standby above its share", algorithms.FixedWindow, func(l *Ledger) {
			l.StandbyActs = append(l.StandbyActs,
				StandbyAct{At: 2 * time.Second, Node: 3, Cost: 7, Share: 10},
				StandbyAct{At: 3 * time.Second, Node: 3, Cost: 4, Share: 10})
		}, "G4"},
	}
	for _, tt := range tests {
		tt.try(t)
	}
}

// The checkers find violations in spans.
func TestJudgeSpans(t *testing.T) {
	steady := func(l *Ledger) { // 100 at once, then 10 a second
		l.admit(time.Second, 1, 100, limiter.ByOwner)
		for i := range 20 {
			l.admit(time.Duration(i+2)*time.Second, 1+i%3, 10, limiter.ByForward)
		}
	}
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.SlidingWindow,
		algorithms.LeakyBucket, algorithms.SlidingLog} {
		tests := []madeCase{
			{"the rate", kind, steady, ""},
			{"a lease's life more", kind,
				func(l *Ledger) { steady(l); l.admit(21*time.Second, 5, 5, limiter.ByLease) }, ""},
			{"more than that", kind,
				func(l *Ledger) { steady(l); l.admit(21*time.Second, 5, 6, limiter.ByLease) }, "G2"},
			{"a span in the middle", kind, func(l *Ledger) {
				l.admit(time.Second, 1, 1, limiter.ByOwner)
				l.admit(50*time.Second, 1, 80, limiter.ByOwner)
				l.admit(51*time.Second, 1, 36, limiter.ByOwner)
				l.admit(90*time.Second, 1, 1, limiter.ByOwner)
			}, "G2"},
			{"held by a check that another subject refused", kind, func(l *Ledger) {
				l.Checks = append(l.Checks,
					Check{Began: 500 * ms, Ended: 1400 * ms, Node: 9, Cost: 3, Joint: true, By: limiter.ByFallback})
				steady(l)
				l.admit(21*time.Second, 5, 8, limiter.ByLease)
			}, ""},
			{"more than was held", kind, func(l *Ledger) {
				l.Checks = append(l.Checks,
					Check{Began: 500 * ms, Ended: 1400 * ms, Node: 9, Cost: 3, Joint: true, By: limiter.ByFallback})
				steady(l)
				l.admit(21*time.Second, 5, 9, limiter.ByLease)
			}, "G2"},
			{"forgotten", kind, func(l *Ledger) {
				steady(l)
				l.admit(21*time.Second, 5, 36, limiter.ByForward)
				l.Losses = append(l.Losses, OwnerLoss{At: 20 * time.Second, Amount: 5})
			}, ""},
			{"more than forgotten", kind, func(l *Ledger) {
				steady(l)
				l.admit(21*time.Second, 5, 37, limiter.ByForward)
				l.Losses = append(l.Losses, OwnerLoss{At: 20 * time.Second, Amount: 5})
			}, "G5"},
			{"forgotten, long ago", kind, func(l *Ledger) {
				steady(l)
				l.admit(121*time.Second, 5, 106, limiter.ByForward)
				l.Losses = append(l.Losses, OwnerLoss{At: 20 * time.Second, Amount: 5})
			}, "G5"},
			{"alone: the share and its rate", kind, func(l *Ledger) {
				l.admit(time.Second, 1, 10, limiter.ByFallback)
				l.admit(11*time.Second, 1, 10, limiter.ByFallback)
			}, ""},
			{"alone: more", kind, func(l *Ledger) {
				l.admit(time.Second, 1, 10, limiter.ByFallback)
				l.admit(10*time.Second, 1, 10, limiter.ByFallback)
			}, "G4"},
		}
		for _, tt := range tests {
			tt.name += " (" + kind.String() + ")"
			tt.try(t)
		}
	}
}

// The checkers find violations around cuts.
func TestJudgeCuts(t *testing.T) {
	cut := func(by limiter.DecidedBy, at time.Duration, cost int64) func(*Ledger) {
		return func(l *Ledger) {
			l.Cuts = []Cut{{Node: 1, From: 5 * time.Second, Until: 40 * time.Second}}
			l.admit(at, 1, cost, by)
		}
	}
	tests := []madeCase{
		{"authority lasts", algorithms.FixedWindow, cut(limiter.ByOwner, 7*time.Second-ms, 50), ""},
		{"authority has run out", algorithms.FixedWindow, cut(limiter.ByOwner, 7*time.Second+ms, 50), "G4"},
		{"connected again", algorithms.FixedWindow, cut(limiter.ByOwner, 41*time.Second, 50), ""},
		{"forwarded to one that is cut off too", algorithms.FixedWindow,
			cut(limiter.ByForward, 8*time.Second, 50), "G4"},
		{"a lease of the window of the cut", algorithms.FixedWindow, cut(limiter.ByLease, 7400*ms, 50), ""},
		{"a lease longer than that", algorithms.FixedWindow, cut(limiter.ByLease, 7600*ms, 50), "G4"},
		{"a lease of a later window", algorithms.FixedWindow, cut(limiter.ByLease, 10100*ms, 50), "G4"},
		{"a bucket's lease", algorithms.TokenBucket, cut(limiter.ByLease, 7400*ms, 50), ""},
		{"alone, a share", algorithms.FixedWindow, cut(limiter.ByFallback, 8*time.Second, 10), ""},
		{"alone, more", algorithms.FixedWindow, cut(limiter.ByFallback, 8*time.Second, 11), "G4"},
		{"alone, twice a share in two windows", algorithms.FixedWindow, func(l *Ledger) {
			l.admit(9*time.Second, 1, 10, limiter.ByFallback)
			l.admit(11*time.Second, 1, 10, limiter.ByFallback)
		}, ""},
		{"two nodes alone", algorithms.FixedWindow, func(l *Ledger) {
			l.admit(9*time.Second, 1, 10, limiter.ByFallback)
			l.admit(9*time.Second, 2, 10, limiter.ByFallback)
		}, ""},
	}
	for _, tt := range tests {
		tt.try(t)
	}
}

// G3: windows that are not full, although they should be.
func TestJudgeFull(t *testing.T) {
	ask := func(admitted int64, until time.Duration) func(*Ledger) {
		return func(l *Ledger) {
			for at := 50 * ms; at < until; at += 50 * ms {
				c := Check{Began: at, Ended: at + ms, Node: 1, Cost: 1, By: limiter.ByForward}
				c.Admitted = admitted > 0
				if c.Admitted {
					admitted--
				}
				l.Checks = append(l.Checks, c)
			}
		}
	}
	trouble := func(t Trouble, f func(*Ledger)) func(*Ledger) {
		return func(l *Ledger) { f(l); l.Troubles = []Trouble{t} }
	}
	owned := func(f func(*Ledger)) func(*Ledger) {
		return func(l *Ledger) { f(l); l.Owners = []Owner{{At: -1, Partition: 7, Node: 4}} }
	}
	end := 10 * time.Second
	tests := []madeCase{
		{"98 of 100", algorithms.FixedWindow, ask(98, end), ""},
		{"97 of 100", algorithms.FixedWindow, ask(97, end), "G3"},
		{"demand ends early", algorithms.FixedWindow, ask(50, 8*time.Second), ""},
		{"the asking node is cut off", algorithms.FixedWindow,
			trouble(Trouble{From: 3 * time.Second, Until: 4 * time.Second, Nodes: map[int]bool{1: true}}, ask(50, end)),
			""},
		{"the owner is cut off", algorithms.FixedWindow,
			owned(trouble(Trouble{From: -4 * time.Second, Until: -3 * time.Second,
				Nodes: map[int]bool{4: true}}, ask(50, end))),
			""},
		{"the owner was cut off long ago", algorithms.FixedWindow,
			owned(trouble(Trouble{From: -9 * time.Second, Until: -6 * time.Second,
				Nodes: map[int]bool{4: true}}, ask(50, end))),
			"G3"},
		{"another node is cut off", algorithms.FixedWindow,
			owned(trouble(Trouble{From: 3 * time.Second, Until: 4 * time.Second,
				Nodes: map[int]bool{2: true}}, ask(50, end))),
			"G3"},
		{"there is no leader", algorithms.FixedWindow,
			trouble(Trouble{From: 3 * time.Second, Until: forever}, ask(50, end)), ""},
	}
	for _, tt := range tests {
		tt.try(t)
	}
}

// G10: each check is decided within a second.
func TestJudgeTime(t *testing.T) {
	slow := func(d time.Duration) func(*Ledger) {
		return func(l *Ledger) { l.Checks = []Check{{Began: 0, Ended: d, Cost: 1, By: limiter.ByForward}} }
	}
	tests := []madeCase{
		{"a second", algorithms.FixedWindow, slow(time.Second), ""},
		{"longer", algorithms.FixedWindow, slow(time.Second + 1), "G10"},
		{"an error", algorithms.FixedWindow, func(l *Ledger) { l.Fail("a check failed") }, "G10"},
	}
	for _, tt := range tests {
		tt.try(t)
	}
}
