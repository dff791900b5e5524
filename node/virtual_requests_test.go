package node

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

// Partitions move from one node to another while a third asks the old owner to
// adjust subjects in them, and the third node's link breaks before the answers
// arrive. It then asks the new owner. No subject is adjusted twice, though the
// caller gave no ID.
func TestD11_AnAdjustmentIsMadeOnceInOneProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(casesToRun(3)) {
		synctest.Test(t, func(t *testing.T) { adjustWhileItMoves(t, time.Duration(15+10*seed)*time.Millisecond) })
	}
}

func adjustWhileItMoves(t *testing.T, after time.Duration) {
	p := newTestCluster(t, 3, exactRules(1_000_000))
	followers := p.followers()
	from, asker := followers[0], followers[1]
	p.net.DelayBetween(from.ip, p.address(3), 20*time.Millisecond)
	p.net.DelayBetween(from.ip, asker.ip, 10*time.Millisecond)
	to := p.joinNode()
	p.eventually("the ring moves", func() bool {
		s := p.nodes[0].node.cluster.State()
		return !s.Settled && s.To.Rank(to.id) >= 0 && asker.node.cluster.State().Revision == s.Revision
	})
	keys := p.keysMoving("year", from, to, 600)
	errs := make([]error, len(keys))
	var done sync.WaitGroup
	for i, key := range keys {
		done.Go(func() { _, errs[i] = asker.node.limiter.Adjust(adjustment("year", []string{key}, 7, "")) })
	}
	time.Sleep(after)
	p.net.Cut(from.ip, asker.ip)
	done.Wait()
	p.net.HealAll()
	p.awaitWhole()
	made, failed := 0, 0
	for i, key := range keys {
		switch used := p.used("year", key); {
		case used == 7:
			made++
		case used == 0 && errs[i] != nil:
			failed++
		default:
			t.Errorf("subject %s: %d used, and the adjustment ended with %v", key, used, errs[i])
		}
	}
	t.Logf("%d were made, %d failed and were not made", made, failed)
}

// keysMoving returns subjects of a rule in partitions that will move from one
// node to another but aren't handed over yet.
func (p *testCluster) keysMoving(rule string, from, to *testNode, n int) (keys []string) {
	s := p.nodes[0].node.cluster.State()
	for i := 0; len(keys) < n && i < 1_000_000; i++ {
		key := fmt.Sprintf("d%d", i)
		q := p.partition(rule, key)
		if s.From.Owner(q) == from.id && s.To.Owner(q) == to.id && from.node.keeper.Route(q).Owner == from.id {
			keys = append(keys, key)
		}
	}
	return keys
}

// A thousand requests with IDs are retried at any node while an owner is
// killed, another node joins and a third one stops: adjustments, reservations
// and counts, of a rule's subjects and of inline ones. Each is decided once,
// and every answer equals the first.
func TestRequestsAreDecidedOnceInOneProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(casesToRun(2)) {
		synctest.Test(t, func(t *testing.T) { requestsOnce(t, seed) })
	}
}

// retriedRequests makes requests with IDs and retries them.
type retriedRequests struct {
	planet       *testCluster
	rnd          *rand.Rand
	keys         int
	costs        []int64
	mu           sync.Mutex // guards the fields below
	answers      map[int]string
	withoutOwner map[string]int64 // reserved without the owner
	t            *testing.T
}

func requestsOnce(t *testing.T, seed uint64) {
	p := newTestCluster(t, 5, exactRules(1_000_000))
	a := &retriedRequests{planet: p, rnd: rand.New(rand.NewPCG(seed, 11)), keys: 50,
		answers: map[int]string{}, withoutOwner: map[string]int64{}, t: t}
	for range 1000 {
		a.costs = append(a.costs, 1+a.rnd.Int64N(9))
	}
	var under sync.WaitGroup
	under.Go(a.sendAll) // some are in flight when the owner dies
	victim := p.followers()[0]
	time.Sleep(time.Duration(a.rnd.IntN(300)) * time.Millisecond)
	victim.endProcess(false)
	under.Wait()
	a.forgetAnswers() // the owner died with answers it had not pushed, so answers are compared only from here on
	p.owner(p.partition("year", "k0"), victim)
	a.sendUntilAnswered()
	p.joinNode()
	for range 6 {
		a.sendAll()
		time.Sleep(300 * time.Millisecond)
	}
	p.followers()[1].endProcess(true)
	a.sendUntilAnswered()
	want := map[string]int64{}
	for i, cost := range a.costs {
		want[a.key(i)] += cost
	}
	time.Sleep(5 * time.Second) // until debts are reported
	for key, n := range want {
		n += a.withoutOwner[key]
		var used int64
		p.eventually("the subject has an owner", func() (ok bool) {
			var err error
			used, err = a.used(key)
			return err == nil
		})
		expect.Equal(t, used, n, "seed %d: subject %s: used", seed, key)
	}
}

// key returns the key of the i-th request. Half of the subjects bring their limits.
func (a *retriedRequests) key(i int) string {
	if i%4 >= 2 {
		return fmt.Sprintf("inline%d", i%a.keys)
	}
	return fmt.Sprintf("k%d", i%a.keys)
}

// query returns the i-th request, for its cost.
func (a *retriedRequests) query(i int) *limiter.Query {
	key, id := a.key(i), fmt.Sprintf("request %d", i)
	costs := []limiter.UnitCost{{Unit: "requests", Cost: a.costs[i]}}
	if i%4 < 2 {
		return &limiter.Query{Rule: "year", Key: []string{key}, ByKey: true, Costs: costs, RequestID: id}
	}
	one := limiter.Subject{Costs: costs, Mode: counters.CountMode}
	one.Key, one.Exact, one.Limits = []string{key}, true, []document.InlineLimit{{Limit: 100,
		Per: "8760h", Algorithm: "fixed-window"}}
	return &limiter.Query{Subjects: []limiter.Subject{one}, RequestID: id}
}

// used returns what the subject of a key has used.
func (a *retriedRequests) used(key string) (int64, error) {
	if !strings.HasPrefix(key, "inline") {
		return a.planet.tryUsed("year", key)
	}
	i := 0
	for a.key(i) != key {
		i++
	}
	for _, v := range a.planet.nodes {
		if v.ready.Load() {
			u, err := v.node.limiter.Usage(a.query(i))
			if err != nil {
				return 0, err
			}
			return u.Limits[0].Used, nil
		}
	}
	return 0, limiter.ErrNoOwner
}

func (a *retriedRequests) forgetAnswers() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.answers)
}

// sendAll sends each request once, to some node. It reports how many got no answer.
func (a *retriedRequests) sendAll() {
	var done sync.WaitGroup
	for i := range a.costs {
		v := a.planet.nodes[a.rnd.IntN(len(a.planet.nodes))]
		if !v.ready.Load() || i%10 == 0 {
			time.Sleep(time.Millisecond)
		}
		if v.ready.Load() {
			done.Go(func() { a.sendOne(v, i) })
		}
	}
	done.Wait()
}

// sendUntilAnswered sends the requests until each has an answer.
func (a *retriedRequests) sendUntilAnswered() {
	a.t.Helper()
	a.planet.eventually("all are answered", func() bool {
		a.sendAll()
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.answers) == len(a.costs)
	})
}

// sendOne sends a request to a node and compares the answer with earlier ones.
func (a *retriedRequests) sendOne(v *testNode, i int) {
	q, key, l := a.query(i), a.key(i), v.node.limiter
	var told string
	if i%4 == 0 || i%8 == 3 {
		u, err := l.Adjust(q)
		if err != nil || v.crashed.Load() {
			return
		}
		told = fmt.Sprintf("%d used", u.Limits[0].Used)
	} else {
		var answer limiter.Answer
		var reservation string
		var err error
		if i%4 == 1 {
			reservation, err = l.Reserve(q, time.Hour, &answer)
		} else {
			err = l.Check(q, &answer)
		}
		if err != nil || v.crashed.Load() {
			return
		}
		if answer.DecidedBy < limiter.ByForward { // decided without the owner: no node remembers the request
			a.mu.Lock()
			defer a.mu.Unlock()
			a.withoutOwner[key] += a.costs[i]
			return
		}
		told = fmt.Sprintf("%v %d %d %s", answer.Allowed, answer.Limits[0].Remaining,
			answer.Limits[0].Used, reservation)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if first, before := a.answers[i]; before && first != told {
		a.t.Errorf("%s: answered %q, before %q", q.RequestID, told, first)
	}
	a.answers[i] = told
}

// adjustment returns the query that adds n to a subject's usage in requests.
func adjustment(rule string, key []string, n int64, request string) *limiter.Query {
	return &limiter.Query{Rule: rule, Key: key,
		Costs: []limiter.UnitCost{{Unit: "requests", Cost: n}}, RequestID: request}
}
