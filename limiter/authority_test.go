package limiter

import (
	"testing"
	"testing/synctest"

	"github.com/rlnode/rlnode/internal/expect"
)

// After a debit, a goroutine may stand still until its node has applied that
// others took over, and has authority again. Authority after the debit is then
// no proof that the debit counts: no decision by this node as the owner stands.
func TestAuthorityForALaterGenerationProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules: [{name: r, key: [k], consistency: exact, limits: [{limit: 100, per: 1h}]}]`)
		owner, asker := w.nodes[0], w.nodes[2]
		q := &Query{Rule: "r", Key: []string{w.keyOf("r", owner, w.nodes[1])}, ByKey: true}
		endedMeanwhile := func() { owner.generation.Add(1) } // between any two readings
		owner.asked.Store(&endedMeanwhile)

		var a Answer
		expect.NoError(t, owner.Check(q, &a))
		if a.DecidedBy == ByOwner {
			t.Errorf("at the owner: got a decision %v, want none as the owner", a.DecidedBy)
		}

		expect.NoError(t, asker.Check(q, &a))
		if a.DecidedBy == ByForward {
			t.Errorf("through another node: got a decision %v, want none by the owner", a.DecidedBy)
		}

		queries, answers, errs := []*Query{q, q, q}, []*Answer{{}, {}, {}}, make([]error, 3)
		owner.CheckAll(queries, answers, errs)
		for i, a := range answers {
			expect.NoError(t, errs[i])
			if a.DecidedBy == ByOwner {
				t.Errorf("check %d of a batch: got a decision %v, want none as the owner", i, a.DecidedBy)
			}
		}
	})
}
