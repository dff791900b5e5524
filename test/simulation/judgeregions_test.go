package simulation

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
)

// madeRegions returns an artificial ledger of two regions that begins with a
// window of the first. The second one's clock is 2 s ahead. It has one subject
// with a limit of 100 in 10 s, half of it for each region.
func madeRegions(kind algorithms.Kind) *Ledger {
	l := madeLedger(kind)
	l.Subjects[0].Global = true
	l.Versions = []Version{{Number: 1, Limits: map[string]Divided{"rule": halves(100)}}}
	for r := range 2 {
		region := madeLedger(kind)
		region.Subjects = l.Subjects
		region.Start = l.Start.Add(time.Duration(2*r) * time.Second)
		region.Holds = []Hold{{At: -time.Hour, Versions: []int{0}}}
		l.Regions = append(l.Regions, region)
	}
	return l
}

// halves divides an amount evenly between both regions.
func halves(amount int64) Divided { return parted(amount/2, amount-amount/2) }

func parted(first, second int64) Divided {
	shares := map[string]int64{RegionName(0): first, RegionName(1): second}
	return Divided{Whole: first + second, Burst: first + second, Shares: shares, Bursts: shares}
}

// unix converts a time since the beginning to the first region's clock, as the primary records it.
func (l *Ledger) unix(at time.Duration) int64 { return l.Start.Add(at).UnixMilli() }

// version adds a version that both regions hold once it is written.
func (l *Ledger) version(written, recorded, from time.Duration, d Divided) {
	v := Version{Number: int64(len(l.Versions) + 1), Written: written, Recorded: recorded,
		Limits: map[string]Divided{"rule": d}}
	if recorded != forever {
		v.From = l.unix(from)
	}
	l.Versions = append(l.Versions, v)
	for _, region := range l.Regions {
		region.Holds = append(region.Holds, Hold{At: written, Versions: []int{0, len(l.Versions) - 1}})
	}
}

type madeRegionsCase struct {
	name string
	have func(l, a, b *Ledger)
	want string
}

func (c *madeRegionsCase) try(t *testing.T, kind algorithms.Kind) {
	t.Helper()
	l := madeRegions(kind)
	c.have(l, l.Regions[0], l.Regions[1])
	broken := l.Judge()
	switch {
	case c.want == "" && len(broken) > 0:
		t.Errorf("%s: have %v, want none", c.name, broken)
	case c.want != "" && (len(broken) != 1 || broken[0].Guarantee != c.want):
		t.Errorf("%s: have %v, want one of %s", c.name, broken, c.want)
	}
}

// G8: windows of all regions together.
func TestJudgeWhole(t *testing.T) {
	tests := []madeRegionsCase{
		{"the limit", func(_, a, b *Ledger) {
			a.admit(time.Second, 1, 70, limiter.ByOwner)
			b.admit(time.Second, 1, 30, limiter.ByLease)
		}, ""},
		{"one more", func(_, a, b *Ledger) {
			a.admit(time.Second, 1, 70, limiter.ByOwner)
			b.admit(time.Second, 1, 31, limiter.ByLease)
		}, "G8"},
		{"windows go by number, on each region's clock", func(_, a, b *Ledger) {
			a.admit(9*time.Second, 1, 70, limiter.ByOwner)
			b.admit(8100*ms, 1, 100, limiter.ByOwner)
			a.admit(21*time.Second, 1, 100, limiter.ByOwner)
		}, ""},
		{"windows with the same number share a bound", func(_, a, b *Ledger) {
			a.admit(11*time.Second, 1, 70, limiter.ByOwner)
			b.admit(8100*ms, 1, 31, limiter.ByOwner)
		}, "G8"},
		{"a raise that is not recorded", func(l, a, b *Ledger) {
			l.version(0, forever, 0, halves(150))
			a.admit(time.Second, 1, 101, limiter.ByOwner)
		}, "G8"},
		{"a raise that is recorded in the window", func(l, a, b *Ledger) {
			l.version(0, 5*time.Second, 6*time.Second, halves(150))
			a.admit(7*time.Second, 1, 150, limiter.ByOwner)
		}, ""},
		{"a raise that is recorded after the window, on the clock that is behind", func(l, a, b *Ledger) {
			l.version(0, 10100*ms, 11*time.Second, halves(150))
			a.admit(7*time.Second, 1, 101, limiter.ByOwner)
		}, "G8"},
		{"a lowering that counts from the next window on", func(l, a, b *Ledger) {
			l.version(0, 5*time.Second, 6*time.Second, halves(60))
			a.admit(7*time.Second, 1, 100, limiter.ByOwner)
			a.admit(11*time.Second, 1, 60, limiter.ByOwner)
		}, ""},
		{"and not kept", func(l, a, b *Ledger) {
			l.version(0, 5*time.Second, 6*time.Second, halves(60))
			a.admit(11*time.Second, 1, 61, limiter.ByOwner)
		}, "G8"},
		{"forgotten in one region", func(_, a, b *Ledger) {
			a.Losses = append(a.Losses, OwnerLoss{At: 5 * time.Second, Amount: 30})
			a.admit(time.Second, 1, 50, limiter.ByOwner)
			b.admit(time.Second, 1, 80, limiter.ByOwner)
		}, ""},
		{"more than forgotten", func(_, a, b *Ledger) {
			a.Losses = append(a.Losses, OwnerLoss{At: 5 * time.Second, Amount: 30})
			a.admit(time.Second, 1, 51, limiter.ByOwner)
			b.admit(time.Second, 1, 80, limiter.ByOwner)
		}, "G5"},
		{"a standby", func(_, a, b *Ledger) {
			a.StandbyActs = append(a.StandbyActs, StandbyAct{At: time.Second, Node: 3, Cost: 5, Share: 5})
			a.admit(time.Second, 1, 55, limiter.ByStandby)
			b.admit(time.Second, 1, 50, limiter.ByOwner)
		}, ""},
		{"alone, a share for each region and node", func(_, a, b *Ledger) {
			a.admit(time.Second, 1, 10, limiter.ByFallback)
			b.admit(time.Second, 1, 10, limiter.ByFallback)
			a.admit(time.Second, 2, 100, limiter.ByOwner)
		}, ""},
		{"alone, more", func(_, a, b *Ledger) { a.admit(time.Second, 1, 11, limiter.ByFallback) }, "G4"},
		{"alone, the share of another window", func(_, a, b *Ledger) {
			a.Checks = append(a.Checks,
				Check{Began: time.Second, Ended: time.Second, Node: 1, Cost: 6, Share: 5,
					Admitted: true, By: limiter.ByFallback})
			a.admit(11*time.Second, 1, 10, limiter.ByFallback)
		}, "G4"},
	}
	for _, tt := range tests {
		tt.try(t, algorithms.FixedWindow)
	}
}

// G8: spans of all regions together.
func TestJudgeFlow(t *testing.T) {
	steady := func(a, b *Ledger) { // 100 at once, then 10 a second
		a.admit(time.Second, 1, 60, limiter.ByOwner)
		b.admit(time.Second, 1, 40, limiter.ByOwner)
		for i := range 20 {
			[]*Ledger{a, b}[i%2].admit(time.Duration(i+2)*time.Second, 1+i%3, 10, limiter.ByForward)
		}
	}
	tests := []madeRegionsCase{
		{"the rate", func(_, a, b *Ledger) { steady(a, b) }, ""},
		{"a lease's life more",
			func(_, a, b *Ledger) { steady(a, b); b.admit(21*time.Second, 5, 5, limiter.ByLease) }, ""},
		{"more than that",
			func(_, a, b *Ledger) { steady(a, b); b.admit(21*time.Second, 5, 6, limiter.ByLease) },
			"G8"},
		{"more than that after a raise that is not recorded", func(l, a, b *Ledger) {
			l.version(0, forever, 0, halves(200))
			steady(a, b)
			b.admit(21*time.Second, 5, 6, limiter.ByLease)
		}, "G8"},
		{"after a raise that is", func(l, a, b *Ledger) {
			l.version(0, 10*time.Second, 11*time.Second, halves(200))
			steady(a, b)
			b.admit(21*time.Second, 5, 200, limiter.ByLease)
		}, ""},
		{"long after a lowering", func(l, a, b *Ledger) {
			l.version(0, 10*time.Second, 11*time.Second, halves(50))
			b.admit(100*time.Second, 5, 60, limiter.ByLease)
		}, "G8"},
		{"forgotten", func(l, a, b *Ledger) {
			steady(a, b)
			b.admit(21*time.Second, 5, 36, limiter.ByForward)
			a.Losses = append(a.Losses, OwnerLoss{At: 20 * time.Second, Amount: 5})
		}, ""},
		{"more than forgotten", func(l, a, b *Ledger) {
			steady(a, b)
			b.admit(21*time.Second, 5, 37, limiter.ByForward)
			a.Losses = append(a.Losses, OwnerLoss{At: 20 * time.Second, Amount: 5})
		}, "G5"},
	}
	for _, tt := range tests {
		tt.try(t, algorithms.TokenBucket)
	}
}

// A region can always spend its own share, less what it has lent.
func TestJudgeOwn(t *testing.T) {
	ask := func(of *Ledger, admitted int64) {
		for at := 50 * ms; at < 10*time.Second; at += 50 * ms {
			c := Check{Began: at, Ended: at + ms, Node: 1, Cost: 1, By: limiter.ByForward}
			c.Admitted = admitted > 0
			if c.Admitted {
				admitted--
			}
			of.Checks = append(of.Checks, c)
		}
	}
	tests := []madeRegionsCase{
		{"its share", func(_, a, b *Ledger) { ask(a, 49) }, ""},
		{"less than 98 % of it", func(_, a, b *Ledger) { ask(a, 48) }, "G8"},
		{"less what it has lent", func(l, a, b *Ledger) {
			l.Loans = []Loan{{At: 10 * ms, From: 0, Subject: 0, Window: a.windowOf(&l.Subjects[0], 0), Amount: 10}}
			ask(a, 40)
		}, ""},
		{"and less still", func(l, a, b *Ledger) {
			l.Loans = []Loan{{At: 10 * ms, From: 0, Subject: 0, Window: a.windowOf(&l.Subjects[0], 0), Amount: 10}}
			ask(a, 38)
		}, "G8"},
		{"what another one has lent, or it has in another window", func(l, a, b *Ledger) {
			l.Loans = []Loan{
				{At: 10 * ms, From: 1, Subject: 0, Window: a.windowOf(&l.Subjects[0], 0), Amount: 10},
				{At: 10 * ms, From: 0, Subject: 0, Window: a.windowOf(&l.Subjects[0], 0) - 1, Amount: 10},
			}
			ask(a, 40)
		}, "G8"},
		{"the least of all versions that it holds", func(l, a, b *Ledger) {
			l.version(5*time.Second, forever, 0, parted(20, 80))
			ask(a, 20)
		}, ""},
		{"something was wrong in it", func(l, a, b *Ledger) {
			a.Troubles = []Trouble{{From: time.Second, Until: 2 * time.Second, Nodes: map[int]bool{1: true}}}
			ask(a, 20)
		}, ""},
		{"something was wrong in another one", func(l, a, b *Ledger) {
			b.Troubles = []Trouble{{From: time.Second, Until: 2 * time.Second, Nodes: map[int]bool{1: true}}}
			ask(a, 20)
		}, "G8"},
	}
	for _, tt := range tests {
		tt.try(t, algorithms.FixedWindow)
	}
}
