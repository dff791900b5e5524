//go:build faults

package faults

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

const (
	mostSlots = 7
	slotTTL   = 3 * time.Second
	slotRules = `{"version":1,"rules":[{"name":"render","key":["k"],"limits":[{"limit":7,"ttl":"3s","algorithm":"concurrency"}]}]}`
)

// slotHolders are workers that hold slots of one subject, at all nodes.
type slotHolders struct {
	f              *fleet
	key            string
	held, most     atomic.Int64
	acquired, lost atomic.Int64
	over           atomic.Bool
	done           sync.WaitGroup
}

func (f *fleet) slotHolders(key string, workers int) *slotHolders {
	h := &slotHolders{f: f, key: key}
	for i := range workers {
		n, random := f.nodes[i%len(f.nodes)], rand.New(rand.NewPCG(f.random.Uint64(), 0))
		h.done.Go(func() {
			for !h.over.Load() {
				h.turn(n, random)
			}
		})
	}
	return h
}

// slotCall calls a node about slots, and returns its answer.
func slotCall(n *node, path, body string) (status int, slot string, expires time.Duration) {
	status, _, text, err := n.callFor(2*time.Second, "POST", 8080, path, body, nil)
	var answer struct {
		Slot      string `json:"slot"`
		ExpiresMS int64  `json:"expires_ms"`
	}
	if err != nil || json.Unmarshal([]byte(text), &answer) != nil {
		return 0, "", 0
	}
	return status, answer.Slot, time.Duration(answer.ExpiresMS) * time.Millisecond
}

// turn acquires a slot, holds and renews it, and releases it or dies with it.
func (h *slotHolders) turn(n *node, random *rand.Rand) {
	sent := time.Now()
	status, id, left := slotCall(n, "/v1/acquire", fmt.Sprintf(`{"rule":"render","key":%q}`, h.key))
	ends := sent.Add(left)
	if status != 200 || !time.Now().Before(ends) {
		time.Sleep(time.Duration(20+random.IntN(100)) * time.Millisecond)
		return
	}
	body := fmt.Sprintf(`{"slot":%q}`, id)
	if h.work(n, random, body, ends) {
		slotCall(n, "/v1/release", body)
	}
}

// work reports whether the slot is to be released. Until it returns, at ends at the latest, the worker counts as a holder.
func (h *slotHolders) work(n *node, random *rand.Rand, body string, ends time.Time) bool {
	now := h.held.Add(1)
	defer h.held.Add(-1)
	h.acquired.Add(1)
	for most := h.most.Load(); now > most && !h.most.CompareAndSwap(most, now); most = h.most.Load() {
	}
	if random.IntN(10) == 0 {
		time.Sleep(time.Until(ends))
		return false
	}

	for done := time.Now().Add(time.Duration(random.IntN(6000)) * time.Millisecond); time.Now().Before(done); {
		time.Sleep(min(time.Until(done), slotTTL/3, time.Until(ends)))
		if !time.Now().Before(ends) {
			return false
		}
		renewed := make(chan time.Time, 1) // the worker stops at ends even if no answer comes
		go func() {
			sent := time.Now()
			switch status, _, left := slotCall(n, "/v1/renew", body); status {
			case 200:
				renewed <- sent.Add(left)
			case 404:
				renewed <- time.Time{}
			}
			close(renewed)
		}()
		select {
		case until, answered := <-renewed:
			if answered && until.IsZero() && time.Now().Before(ends) {
				h.lost.Add(1)
				return false
			}
			if answered && time.Now().Before(ends) {
				ends = until
			}
		case <-time.After(time.Until(ends)):
			return false
		}
	}
	return true
}

// TestG11_Slots: owners are killed with all slots held, and every node is restarted in turn. Never more than the limit are held, as the
// workers see it, and afterwards there are slots again within max(ttl, 5 s) + 1 s.
func TestG11_Slots(t *testing.T) {
	f := newFleet(t, 3)
	f.write(slotRules)
	h := f.slotHolders("acme", 60)
	for range int(long(2*time.Second) / time.Second) {
		f.pass(f.between(time.Second, 3*time.Second))
		owner, _, err := f.any().ownerOf("render", "acme")
		expect.NoError(t, err)
		f.kill(f.nodes[f.byName(owner)])
		before := h.acquired.Load()
		within(t, slotTTL+6*time.Second, "there are slots again", func() string {
			if h.acquired.Load() == before {
				return "nobody has got one since the owner was killed"
			}
			return ""
		})
		f.heal()
		f.whole(agreeTime)
	}

	for _, i := range f.random.Perm(3) {
		f.nodes[i].stop()
		f.pass(f.between(0, 2*time.Second))
		f.nodes[i].up()
		f.whole(agreeTime)
	}
	h.over.Store(true)
	h.done.Wait()
	t.Logf("%d acquired, %d at most at once", h.acquired.Load(), h.most.Load())
	if h.most.Load() > mostSlots || h.lost.Load() > 0 {
		t.Errorf("have %d held at once, want at most %d; %d were lost", h.most.Load(), mostSlots, h.lost.Load())
	}
}
