package partitions

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// A node that can be reached but accepts no copies lags after five seconds, as
// seen by each owner that it follows, even one without changes. A node that has
// not yet applied the agreed state does not lag.
func TestD3_WhoTakesNoCopiesLags(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		lagging := func(n *node, want ...*node) {
			t.Helper()
			var ids []ring.NodeID
			for _, w := range want {
				ids = append(ids, w.id)
			}
			expect.EqualSlices(t, n.keeper.Load().Unresponsive(), ids, "%s", n.ip)
		}
		time.Sleep(10 * time.Second)
		lagging(a)
		c.muted.Store(true)
		time.Sleep(4 * time.Second)
		lagging(a)
		time.Sleep(3 * time.Second)
		lagging(a, c)
		lagging(b, c)
		if !a.peers.Reachable(c.id) {
			t.Error("it can't be reached")
		}
		b.muted.Store(true)
		time.Sleep(7 * time.Second)
		lagging(a) // most of a's copy targets lag, so the fault may be its own
		b.muted.Store(false)
		c.muted.Store(false)
		time.Sleep(3 * time.Second)
		lagging(a)
		lagging(b)
		c.lag.Store(int64(time.Minute))
		f.ring(a, b, c) // a revision that c applies late
		time.Sleep(8 * time.Second)
		lagging(a)
	})
}

// TestAStandbyThatIsBehindGivesItsCopies: an owner is killed and comes back at
// once. Its standby's disk is full, so the standby does not apply the
// registration of the new process.
func TestAStandbyThatIsBehindGivesItsCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		const keys, hits = 300, 5
		for i := range keys * hits {
			if _, ok, err := f.take(c, keyOf(i%keys)); err != nil || !ok {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		b.lag.Store(int64(time.Hour))
		f.agree(agreement.Empty{})
		a.kill()
		time.Sleep(100 * time.Millisecond)
		a.restart()
		f.bring(a)
		began := time.Now()
		f.eventually("the owner has all its partitions", func() bool {
			for p := range ring.Partitions {
				if f.state.To.Owner(p) == a.id && !a.table.Load().IsOpen(p) {
					return false
				}
			}
			return true
		})
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the owner continued after %v", took)
		}
		for i := range keys {
			if have := f.used(keyOf(i)); have < hits {
				t.Fatalf("key %d: %d of %d", i, have, hits)
			}
		}
	})
}

// A node that has not yet applied the agreed state waits for it once, not for
// each message that refers to it. Otherwise it would answer the messages queued
// behind them too late.
func TestWhoIsBehindAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b := f.nodes[0], f.nodes[1]
		a.lag.Store(int64(time.Hour))
		f.agree(agreement.Empty{})
		f.agree(agreement.RegisterProcess{Node: idOf(7), Boot: 7})
		f.eventually("the other nodes know",
			func() bool { return b.keeper.Load().AdoptedRevision() == f.state.Revision })
		for range 100 {
			b.peers.Go(a.id, MethodDebts, b.keeper.Load().appendHeader(nil, 0), debtsTimeout, func([]byte, error) {})
		}
		a.authority.Store(false)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), copyInfoTimeout)
		defer cancel()
		_, err := b.peers.Call(ctx, a.id, MethodCopyInfo,
			appendPartitions(wire.AppendBool(b.keeper.Load().appendHeader(nil, 0), true), []int{1}))
		if took := time.Since(began); err != nil || took > 2*catchUpTimeout {
			t.Errorf("answered after %v: %v", took, err)
		}
	})
}
