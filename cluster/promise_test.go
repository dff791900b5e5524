package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// id returns the ID of node n.
func id(n byte) ring.NodeID { return ring.NodeID{n} }

func ids(ns ...byte) []ring.NodeID {
	out := make([]ring.NodeID, len(ns))
	for i, n := range ns {
		out[i] = id(n)
	}
	return out
}

func TestFoundingView(t *testing.T) {
	fresh := func(n byte) gossip.Member { return gossip.Member{ID: id(n), BootstrapExpect: 3, RaftEmpty: true} }
	with := func(m gossip.Member, change func(*gossip.Member)) gossip.Member {
		change(&m)
		return m
	}
	for _, test := range []struct {
		name    string
		members []gossip.Member
		want    foundingView
	}{
		{"too few", []gossip.Member{fresh(1), fresh(2)}, foundingView{}},
		{"enough", []gossip.Member{fresh(3), fresh(1), fresh(2)}, foundingView{set: ids(1, 2, 3)}},
		{"the lowest", []gossip.Member{fresh(4), fresh(3), fresh(5), fresh(2)}, foundingView{set: ids(2, 3, 4)}},
		{"one is gone",
			[]gossip.Member{fresh(1), fresh(2), with(fresh(3), func(m *gossip.Member) { m.State = gossip.Failed })},
			foundingView{}},
		{"one expects others",
			[]gossip.Member{fresh(1), fresh(2), with(fresh(3), func(m *gossip.Member) { m.BootstrapExpect = 5 })},
			foundingView{}},
		{"one only joins",
			[]gossip.Member{fresh(1), fresh(2), with(fresh(3), func(m *gossip.Member) { m.BootstrapExpect = 0 })},
			foundingView{}},
		{"a cluster",
			[]gossip.Member{fresh(1), fresh(2), fresh(3), with(fresh(4), func(m *gossip.Member) { m.Cluster[0] = 1 })},
			foundingView{clusterExists: true}},
		{"a cluster that failed", []gossip.Member{fresh(1), fresh(2), fresh(3),
			with(fresh(4), func(m *gossip.Member) { m.Cluster[0], m.State = 1, gossip.Failed })},
			foundingView{clusterExists: true}},
		{"one in the making",
			[]gossip.Member{fresh(1), fresh(2), fresh(3),
				with(fresh(4), func(m *gossip.Member) { m.RaftEmpty = false })},
			foundingView{clusterExists: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if have := newFoundingView(id(1), 3,
				test.members); have.clusterExists != test.want.clusterExists || !slices.Equal(have.set,
				test.want.set) {
				t.Errorf("have %+v, want %+v", have, test.want)
			}
		})
	}
}

func TestNextStepOfAFounding(t *testing.T) {
	own := promise{Proposer: id(2), Attempt: 4, Set: ids(2, 3, 4), LastAttempt: 4}
	other := promise{Proposer: id(1), Attempt: 9, Set: ids(1, 2, 3), LastAttempt: 4}
	for _, test := range []struct {
		name string
		p    promise
		out  foundingView
		want foundingStep
		then promise
	}{
		{"nobody there", promise{}, foundingView{}, stepWait, promise{}},
		{"not the lowest", promise{}, foundingView{set: ids(1, 2, 3)}, stepWait, promise{}},
		{"the lowest", promise{LastAttempt: 3}, foundingView{set: ids(2, 3, 4)}, stepAsk, own},
		{"the lowest, and a cluster", promise{}, foundingView{clusterExists: true}, stepWait, promise{}},
		{"again", own, foundingView{set: ids(2, 3, 4)}, stepAsk, own},
		{"another set", own, foundingView{set: ids(2, 3, 5)}, stepAsk,
			promise{Proposer: id(2), Attempt: 5, Set: ids(2, 3, 5), LastAttempt: 5}},
		{"a lower one has come", own, foundingView{set: ids(1, 2, 3)}, stepGiveUp, promise{LastAttempt: 4}},
		{"a cluster has come", own, foundingView{clusterExists: true}, stepGiveUp, promise{LastAttempt: 4}},
		{"others are away", own, foundingView{}, stepWait, own},
		{"another one's", other, foundingView{set: ids(2, 3, 4)}, stepCheck, other},
		{"another one's, and a cluster", other, foundingView{clusterExists: true}, stepCheck, other},
	} {
		t.Run(test.name, func(t *testing.T) {
			then, step := test.p.nextStep(id(2), test.out)
			if step != test.want || !then.equal(test.then) {
				t.Errorf("have step %d and %+v, want %d and %+v", step, then, test.want, test.then)
			}
		})
	}
}

func TestAnswerToAProposer(t *testing.T) {
	ask := promiseRequest{Proposer: id(2), Attempt: 4, Set: ids(2, 3, 4)}
	given := promise{Proposer: id(2), Attempt: 4, Set: ids(2, 3, 4)}
	for _, test := range []struct {
		name  string
		p     promise
		ask   promiseRequest
		taken bool
		want  promiseReply
		then  promise
	}{
		{"free", promise{}, ask, false, promiseReply{Given: true}, given},
		{"the same again", given, ask, false, promiseReply{Given: true}, given},
		{"a new attempt", promise{Proposer: id(2), Attempt: 3, Set: ids(2, 3, 5)}, ask, false,
			promiseReply{Given: true}, given},
		{"an old attempt", promise{Proposer: id(2), Attempt: 5, Set: ids(2, 3, 5)}, ask, false, promiseReply{To: id(2)},
			promise{Proposer: id(2), Attempt: 5, Set: ids(2, 3, 5)}},
		{"another set", promise{Proposer: id(2), Attempt: 4, Set: ids(2, 3, 5)}, ask, false, promiseReply{To: id(2)},
			promise{Proposer: id(2), Attempt: 4, Set: ids(2, 3, 5)}},
		{"promised to a higher one", promise{Proposer: id(5), Attempt: 1, Set: ids(3, 4, 5)}, ask,
			false, promiseReply{To: id(5)},
			promise{Proposer: id(5), Attempt: 1, Set: ids(3, 4, 5)}},
		{"its own attempt", promise{Proposer: id(3), Attempt: 1, Set: ids(3, 4, 5), LastAttempt: 1}, ask,
			false, promiseReply{Given: true},
			promise{Proposer: id(2), Attempt: 4, Set: ids(2, 3, 4), LastAttempt: 1}},
		{"its own attempt, decided",
			promise{Proposer: id(3), Attempt: 1, Set: ids(3, 4, 5), LastAttempt: 1, Decided: true}, ask, false,
			promiseReply{To: id(3)}, promise{Proposer: id(3), Attempt: 1, Set: ids(3, 4, 5), LastAttempt: 1, Decided: true}},
		{"there is a cluster", promise{}, ask, true, promiseReply{Cluster: true}, promise{}},
		{"not in the set", promise{},
			promiseRequest{Proposer: id(2), Attempt: 1, Set: ids(2, 4, 5)}, false, promiseReply{},
			promise{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			then, reply := test.p.answer(id(3), test.ask, test.taken)
			if reply != test.want || !then.equal(test.then) {
				t.Errorf("have %+v and %+v, want %+v and %+v", reply, then, test.want, test.then)
			}
		})
	}
}

func TestTooManyForOneFounding(t *testing.T) {
	node := func(n byte, change ...func(*gossip.Member)) gossip.Member {
		m := gossip.Member{ID: id(n), Address: fmt.Sprintf("10.0.0.%d", n), PeerPort: 7947,
			BootstrapExpect: 2, RaftEmpty: true}
		for _, c := range change {
			c(&m)
		}
		return m
	}
	joins := func(m *gossip.Member) { m.BootstrapExpect = 0 }
	failed := func(m *gossip.Member) { m.State = gossip.Failed }
	left := func(m *gossip.Member) { m.State = gossip.Left }
	three := []gossip.Member{node(1), node(2), node(3)}
	for _, test := range []struct {
		name          string
		expect, named int
		members       []gossip.Member
		refused       bool
	}{
		{"alone", 1, 1, []gossip.Member{node(1)}, false},
		{"one of two", 1, 2, []gossip.Member{node(1)}, true},
		{"two of three", 2, 3, three, false},
		{"--join names four", 2, 4, []gossip.Member{node(1)}, true},
		{"gossip knows four", 2, 2, append(three[:3:3], node(4)), true},
		{"one of four only joins", 2, 2, append(three[:3:3], node(4, joins)), false},
		{"one of four can't be reached", 2, 2, append(three[:3:3], node(4, failed)), true},
		{"one of four has left", 2, 2, append(three[:3:3], node(4, left)), false},
		{"one of three had another disk before", 2, 3,
			append(three[:3:3], node(4, failed, func(m *gossip.Member) { m.Address = "10.0.0.3" })),
			false},
		{"founds nothing", 0, 9, three, false},
	} {
		err := expectError(test.expect, test.named, test.members)
		if errors.Is(err, ErrRefused) != test.refused || (err != nil) != test.refused {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := expectError(2, 0, three); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("names that are being resolved: %v", err)
	}
}

// TestNoTwoFoundings: nodes that see each other at random, lose messages and
// forget everything but their promises never complete two foundings that share
// a node.
func TestNoTwoFoundings(t *testing.T) {
	const nodes, expect = 6, 3
	completed := 0
	for seed := range uint64(2000) {
		chance := rand.New(rand.NewPCG(seed, 3))
		promises := map[ring.NodeID]promise{}
		founded := map[ring.NodeID]ring.NodeID{} // member → proposer
		for range 200 {
			self := id(byte(1 + chance.IntN(nodes)))
			if founded[self] == self {
				continue
			}
			var seen []gossip.Member
			for n := range byte(nodes) {
				if other := id(n + 1); other == self || chance.IntN(3) > 0 {
					seen = append(seen, gossip.Member{ID: other, BootstrapExpect: expect, RaftEmpty: true})
				}
			}
			p, step := promises[self].nextStep(self, newFoundingView(self, expect, seen))
			promises[self] = p
			switch {
			case chance.IntN(4) == 0: // lost, or a crash
			case step == stepCheck && !promises[p.Proposer].isStillValid(p.Proposer, p.Attempt):
				promises[self] = p.withdrawn()
			case step == stepAsk:
				p = collect(chance, promises, self, p)
				if p.Decided {
					promises[self] = p
					completed++
					for _, member := range p.Set {
						if before, twice := founded[member]; twice {
							t.Fatalf("seed %d: %s is in the foundings of %s and %s", seed, member, before, self)
						}
						founded[member] = self
					}
				}
			}
		}
	}
	if completed < 1000 {
		t.Errorf("only %d foundings in 2000 runs", completed)
	}
}

// collect asks a set for promises. The returned promise is decided if all nodes gave theirs.
func collect(chance *rand.Rand, promises map[ring.NodeID]promise, self ring.NodeID, p promise) promise {
	for _, other := range p.Set {
		if other == self {
			continue
		}
		next, reply := promises[other].answer(other, promiseRequest{self, p.Attempt, p.Set}, false)
		promises[other] = next
		switch {
		case !reply.Given && !reply.To.IsZero() && reply.To.Compare(self) < 0:
			promises[self] = p.withdrawn()
			return p.withdrawn()
		case !reply.Given || chance.IntN(5) == 0:
			return p
		}
	}
	p.Decided = true
	return p
}

func TestPromisesAreKept(t *testing.T) {
	s := &store{disk: newDisk()}
	if p, err := loadPromise(s); err != nil || !p.equal(promise{}) {
		t.Errorf("have %+v, %v", p, err)
	}
	want := promise{Proposer: id(2), Attempt: 4, Set: ids(2, 3, 4), LastAttempt: 7, Decided: true}
	expect.NoError(t, storePromise(s, want))
	if p, err := loadPromise(s); err != nil || !p.equal(want) {
		t.Errorf("have %+v, %v, want %+v", p, err, want)
	}
	expect.NoError(t, s.Set([]byte(keyPromise), []byte("{")))
	if _, err := loadPromise(s); err == nil {
		t.Error("a damaged promise was read")
	}
	var none raft.StableStore = failing{s}
	if _, err := loadPromise(none); !errors.Is(err, errDisk) {
		t.Errorf("have %v, want %v", err, errDisk)
	}
}

var errDisk = errors.New("the disk is gone")

// failing is a store that can't be read.
type failing struct{ *store }

func (failing) Get([]byte) ([]byte, error) { return nil, errDisk }
