package authority

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// voting is a model of Raft's elections, including changes of membership.
// Messages are delayed, lost and reordered. Nodes are numbered. The log
// contains only configurations and each leader's first entry.
type voting struct {
	random   *rand.Rand
	now      int // events so far
	nodes    []*voter
	mail     []letter
	elected  []election
	asked    []asked
	granted  int
	sabotage string
}

type voter struct {
	n       int
	term    uint64
	vote    int // in this term; -1: none
	votes   []int
	leads   bool
	log     []logged
	commit  int
	match   map[int]int
	began   []int // the configuration when it was elected
	answers *Confirmations
}

type logged struct {
	term    uint64
	members []int // nil: not a configuration
}

type election struct {
	term uint64
	at   int
}

// asked is a question that a leader wants to answer.
type asked struct {
	leader int
	term   uint64
	at     int
	after  uint64
}

type letter struct {
	from, to int
	term     uint64
	vote, ok bool // a vote is asked for or answered, else entries are; ok: granted, or stored
	answer   bool
	number   uint64
	log      []logged
}

const modelNodes = 5

func newVoting(seed uint64, sabotage string) *voting {
	v := &voting{random: rand.New(rand.NewPCG(seed, 7)), sabotage: sabotage}
	for n := range modelNodes {
		v.nodes = append(v.nodes,
			&voter{n: n, vote: -1, log: []logged{{members: []int{0, 1, 2}}}, answers: &Confirmations{}})
	}
	return v
}

// members returns the newest configuration, committed or not, and the length of the log up to it.
func (n *voter) members() ([]int, int) {
	for i := len(n.log) - 1; ; i-- {
		if n.log[i].members != nil {
			return n.log[i].members, i + 1
		}
	}
}

func most(members []int, of func(int) bool) bool {
	have := 0
	for _, m := range members {
		if of(m) {
			have++
		}
	}
	return 2*have > len(members)
}

func (v *voting) send(l letter) {
	if l.from == l.to {
		v.deliver(l)
	} else {
		v.mail = append(v.mail, l)
	}
}

// step makes one random event happen.
func (v *voting) step() {
	v.now++
	n := v.nodes[v.random.IntN(modelNodes)]
	switch x := v.random.IntN(100); {
	case x < 2:
		v.stand(n)
	case x < 20 && n.leads:
		for to := range modelNodes {
			if v.random.IntN(4) > 0 {
				l := letter{from: n.n, to: to, term: n.term, number: n.answers.NextNumber()}
				if v.random.IntN(2) == 0 {
					l.log = slices.Clone(n.log)
				}
				v.send(l)
			}
		}
	case x < 24 && n.leads:
		v.change(n)
	case x < 32 && n.leads:
		v.asked = append(v.asked, asked{n.n, n.term, v.now, n.answers.sent.Load()})
	case len(v.mail) > 0:
		i := v.random.IntN(len(v.mail))
		l := v.mail[i]
		v.mail = slices.Delete(v.mail, i, i+1)
		if v.random.IntN(12) > 0 {
			v.deliver(l)
		}
	}
}

func (v *voting) stand(n *voter) {
	members, _ := n.members()
	if !slices.Contains(members, n.n) {
		return
	}
	n.term, n.vote, n.votes, n.leads = n.term+1, n.n, nil, false
	for _, to := range members {
		v.send(letter{from: n.n, to: to, term: n.term, vote: true, log: n.log})
	}
}

// change adds or removes one node, if the last change and an entry of this leader have committed.
func (v *voting) change(n *voter) {
	members, at := n.members()
	if n.commit < at || n.log[n.commit-1].term != n.term {
		return
	}
	one := v.random.IntN(modelNodes)
	next := slices.DeleteFunc(slices.Clone(members), func(m int) bool { return m == one })
	if len(next) == len(members) {
		next = append(next, one)
	}
	if len(next) > 0 {
		n.log = append(slices.Clip(n.log), logged{n.term, next})
	}
}

func (v *voting) deliver(l letter) {
	n := v.nodes[l.to]
	if l.term > n.term && (l.vote || !l.answer) { // the answer to a heartbeat ends no leader's lead in Raft
		n.term, n.vote, n.leads = l.term, -1, false
	}
	switch {
	case l.vote && !l.answer:
		last, own := l.log[len(l.log)-1].term, n.log[len(n.log)-1].term
		ok := l.term == n.term && (n.vote == -1 || n.vote == l.from) &&
			(last > own || last == own && len(l.log) >= len(n.log))
		if ok {
			n.vote = l.from
		}
		v.send(letter{from: n.n, to: l.from, term: n.term, vote: true, answer: true, ok: ok})
	case l.vote:
		v.count(n, l)
	case !l.answer:
		ok := l.term == n.term
		if ok && l.log != nil && n.n != l.from {
			same := len(l.log) <= len(n.log) &&
				slices.EqualFunc(l.log, n.log[:len(l.log)], func(a, b logged) bool { return a.term == b.term })
			if !same {
				n.log = slices.Clone(l.log)
			}
		}
		v.send(letter{from: n.n, to: l.from, term: n.term, answer: true, ok: ok && l.log != nil,
			number: l.number, log: l.log})
	default:
		v.answered(n, l)
	}
}

func (v *voting) count(n *voter, l letter) {
	if !l.ok || l.term != n.term || n.leads || n.vote != n.n {
		return
	}
	n.votes = append(n.votes, l.from)
	members, _ := n.members()
	if !most(members, func(m int) bool { return slices.Contains(n.votes, m) }) {
		return
	}
	n.leads, n.began, n.match = true, members, map[int]int{}
	n.log = append(slices.Clip(n.log), logged{term: n.term})
	v.elected = append(v.elected, election{n.term, v.now})
}

func (v *voting) answered(n *voter, l letter) {
	term, number := l.term, l.number
	switch v.sabotage {
	case "the term of an answer is not looked at":
		term = n.term
	case "an answer counts from when it arrives":
		number = n.answers.NextNumber()
	}
	n.answers.RecordAnswer(id(byte(l.from+1)), term, number)
	if !n.leads || l.term != n.term || !l.ok {
		return
	}
	n.match[l.from], n.match[n.n] = max(n.match[l.from], len(l.log)), len(n.log)
	members, _ := n.members()
	for at := len(n.log); at > n.commit && n.log[at-1].term == n.term; at-- {
		if most(members, func(m int) bool { return n.match[m] >= at }) {
			n.commit = at
		}
	}
}

// voters returns the nodes that have to confirm.
func (v *voting) voters(n *voter) (ids []ring.NodeID) {
	members, _ := n.members()
	switch v.sabotage {
	case "those that don't vote count":
		members = []int{0, 1, 2, 3, 4}
	case "members are those of the election":
		members = n.began
	case "a leader that doesn't vote counts itself":
		if !slices.Contains(members, n.n) {
			members = append([]int{n.n}, members[1:]...)
		}
	}
	for _, m := range members {
		ids = append(ids, id(byte(m+1)))
	}
	return ids
}

// answer answers the questions that are confirmed. It returns false if one of
// them should not have been confirmed, because a later leader had been elected
// before it was asked.
func (v *voting) answer() bool {
	right := true
	v.asked = slices.DeleteFunc(v.asked, func(q asked) bool {
		n := v.nodes[q.leader]
		if (!n.leads || n.term != q.term) && v.sabotage != "nobody looks afterwards" {
			return true
		}
		after := q.after
		if v.sabotage == "answers to earlier messages count" {
			after = 0
		}
		if !n.answers.hasMajority(id(byte(n.n+1)), q.term, after, v.voters(n)) {
			return false
		}
		v.granted++
		for _, e := range v.elected {
			right = right && !(e.term > q.term && e.at < q.at)
		}
		return true
	})
	return right
}

// TestConfirmedLeadersLed: a confirmed leader led when it was asked. The model
// detects each way to be less strict.
func TestConfirmedLeadersLed(t *testing.T) {
	const seeds, steps = 400, 4000
	for _, sabotage := range []string{
		"", "the term of an answer is not looked at", "an answer counts from when it arrives",
		"those that don't vote count",
		"members are those of the election", "a leader that doesn't vote counts itself", "nobody looks afterwards",
		"answers to earlier messages count",
	} {
		t.Run(sabotage, func(t *testing.T) {
			granted, elections := 0, 0
			for seed := range uint64(seeds) {
				v := newVoting(seed, sabotage)
				right := true
				for range steps {
					v.step()
					right = right && v.answer()
				}
				granted, elections = granted+v.granted, elections+len(v.elected)
				switch {
				case !right && sabotage == "":
					t.Fatalf("seed %d: a question was answered that was asked after a later leader had been elected", seed)
				case !right:
					t.Logf("found at seed %d", seed)
					return
				}
			}
			if sabotage != "" {
				t.Error("the model does not detect it")
			}
			if t.Logf("%d elections, %d confirmations", elections, granted); granted < 10*seeds || elections < 2*seeds {
				t.Error("the model confirms nothing")
			}
		})
	}
}

// TestAwaitReturns: Await ends with the majority's last answer, or with its
// context, and leaves nothing behind.
func TestAwaitReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Confirmations
		voters := []ring.NodeID{id(1), id(2), id(3)}
		early := c.NextNumber()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- c.Await(ctx, id(1), 5, func() []ring.NodeID { return voters }) }()
		synctest.Wait()
		c.RecordAnswer(id(2), 5, early)
		c.RecordAnswer(id(3), 4, c.NextNumber())
		c.RecordAnswer(id(4), 5, c.NextNumber())
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("have %v without a majority", err)
		default:
		}
		c.RecordAnswer(id(2), 5, c.NextNumber())
		if err := <-ended; err != nil {
			t.Errorf("have %v", err)
		}
		err := c.Await(ctx, id(1), 5, func() []ring.NodeID { return voters })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("have %v without an answer", err)
		}
		if err := c.Await(ctx, id(1), 5, func() []ring.NodeID { return voters[:1] }); err != nil {
			t.Errorf("have %v from the only voter", err)
		}
	})
}

// A confirmation that waits for a voter does not wait any longer once that one
// is removed: it answers no more.
func TestAwaitedVoterIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		self, other := ring.NodeID{1}, ring.NodeID{2}
		var removed atomic.Bool
		voters := func() []ring.NodeID {
			if removed.Load() {
				return []ring.NodeID{self}
			}
			return []ring.NodeID{self, other}
		}
		time.AfterFunc(time.Second, func() { removed.Store(true) })
		ctx, cancel := context.WithTimeout(t.Context(), proposeTimeout)
		defer cancel()
		began := time.Now()
		if err := new(Confirmations).Await(ctx, self, 1, voters); err != nil || time.Since(began) < time.Second {
			t.Errorf("have %v after %v", err, time.Since(began))
		}
	})
}
