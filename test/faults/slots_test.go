//go:build faults

package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
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

// hold is a time during which a worker counts as the holder of a slot, by its own clock.
type hold struct {
	from time.Time
	to   time.Time // its end as far as the worker knows: when it stopped, or the end of the slot it last heard of
}

// slotHolders are workers that hold slots of one subject, at all nodes.
type slotHolders struct {
	f    *fleet
	key  string
	over atomic.Bool
	done sync.WaitGroup

	mu    sync.Mutex // guards what follows
	holds []*hold
	lost  int // slots that a node called unknown before their end
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
	now := time.Now()
	one := &hold{from: now, to: sent.Add(left)}
	if status != 200 || !now.Before(one.to) {
		time.Sleep(time.Duration(20+random.IntN(100)) * time.Millisecond)
		return
	}

	h.mu.Lock()
	h.holds = append(h.holds, one)
	h.mu.Unlock()

	body := fmt.Sprintf(`{"slot":%q}`, id)
	if h.work(n, random, body, one) {
		h.setEnd(one, time.Now())
		slotCall(n, "/v1/release", body)
	}
}

// setEnd changes until when a worker counts as a holder. A holder whose end is
// over stays without a slot.
func (h *slotHolders) setEnd(one *hold, to time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(one.to) {
		one.to = to
	}
}

// end returns until when a worker counts as a holder.
func (h *slotHolders) end(one *hold) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return one.to
}

// work holds a slot, and reports whether it is to be released.
func (h *slotHolders) work(n *node, random *rand.Rand, body string, one *hold) bool {
	if random.IntN(10) == 0 {
		time.Sleep(time.Until(h.end(one)))
		return false
	}

	for done := time.Now().Add(time.Duration(random.IntN(6000)) * time.Millisecond); time.Now().Before(done); {
		ends := h.end(one)
		time.Sleep(min(time.Until(done), slotTTL/3, time.Until(ends)))
		if !time.Now().Before(ends) {
			return false
		}

		renewed := make(chan bool, 1) // the worker stops at its end even if no answer comes
		go func() {
			sent := time.Now()
			status, _, left := slotCall(n, "/v1/renew", body)
			if status == 200 {
				h.setEnd(one, sent.Add(left))
			}
			renewed <- status != 404
		}()
		select {
		case ours := <-renewed:
			if !ours && time.Now().Before(h.end(one)) {
				h.mu.Lock()
				h.lost++
				h.mu.Unlock()
				return false
			}
		case <-time.After(time.Until(ends)):
			return false
		}
	}
	return true
}

// all reports why not all slots are held, one of them since a time.
func (h *slotHolders) all(since time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, held, fresh := time.Now(), 0, 0
	for _, one := range h.holds {
		if one.to.After(now) {
			held++
		}
		if one.from.After(since) {
			fresh++
		}
	}
	if held >= mostSlots && fresh > 0 {
		return ""
	}
	return fmt.Sprintf("%d are held, and %d were acquired since", held, fresh)
}

// most returns how many slots were held at once, at most.
func (h *slotHolders) most() (most int, at time.Time) {
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	for _, one := range h.holds {
		changes = append(changes, change{one.from, 1}, change{one.to, -1})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), a.by-b.by) })
	held := 0
	for _, c := range changes {
		held += c.by
		if held > most {
			most, at = held, c.at
		}
	}
	return most, at
}

// ownerAndStandby returns the nodes that have the subject's slots.
func (h *slotHolders) ownerAndStandby() (owner, standby *node) {
	h.f.t.Helper()
	within(h.f.t, patience, "the subject has an owner and a standby", func() string {
		o, s, err := h.f.any().ownerOf("render", h.key)
		if err != nil || h.f.byName(o) < 0 || h.f.byName(s) < 0 {
			return fmt.Sprintf("owner %q, standby %q: %v", o, s, err)
		}
		owner, standby = h.f.nodes[h.f.byName(o)], h.f.nodes[h.f.byName(s)]
		return ""
	})
	return owner, standby
}

// judge stops the workers. Never too many slots were held while connected, and
// none was called unknown before its end: even where both nodes that knew it
// are lost, a renewal brings it back.
func (h *slotHolders) judge() {
	h.f.t.Helper()
	h.over.Store(true)
	h.done.Wait()
	most, at := h.most()
	h.f.t.Logf("%d acquired, %d at most at once", len(h.holds), most)
	if most > mostSlots {
		h.f.t.Errorf("have %d held at once at %s, want at most %d", most, at.UTC().Format("15:04:05.000"), mostSlots)
	}
	if h.lost > 0 {
		h.f.t.Errorf("%d slots were unknown before their end", h.lost)
	}
}

// slotFault is something that happens to the nodes which have a subject's slots.
type slotFault struct {
	name   string
	do     func(f *fleet, owner, standby *node)
	within time.Duration // until all slots can be had again
}

// afterOne is within what a single fault must be over for slots: the longer of
// their ttl and five seconds, and a second.
const afterOne = max(slotTTL, 5*time.Second) + time.Second

var slotFaults = []slotFault{
	{"the owner is killed", func(f *fleet, owner, _ *node) { f.kill(owner) }, afterOne},
	{"the standby is killed", func(f *fleet, _, standby *node) { f.kill(standby) }, afterOne},
	{"owner and standby are killed",
		func(f *fleet, owner, standby *node) { f.killTogether(together, owner, standby) },
		afterOne + slotTTL},
	{"the owner is paused", func(f *fleet, owner, _ *node) { f.pause(owner) }, afterOne},
	{"the standby is paused", func(f *fleet, _, standby *node) { f.pause(standby) }, afterOne},
	{"the owner is cut off", func(f *fleet, owner, _ *node) { f.cut(owner, f.random.IntN(2) == 0) }, afterOne},
	{"the standby is cut off", func(f *fleet, _, standby *node) { f.cut(standby, f.random.IntN(2) == 0) }, afterOne},
	{"their link is cut", func(f *fleet, owner, standby *node) { f.part(owner, standby, false) }, afterOne},
	{"the standby hears nothing of the owner",
		func(f *fleet, owner, standby *node) { f.part(standby, owner, true) }, afterOne},
}

// TestG11_Slots: the nodes that have the slots are killed, paused and cut off
// with all slots held, and every node is restarted in turn. Never more than the
// limit are held, as the workers see it, and afterwards all can be had again
// soon.
func TestG11_Slots(t *testing.T) {
	f := newFleet(t, 5)
	f.write(slotRules)
	h := f.slotHolders("acme", 100)
	faults := slices.Clone(slotFaults)
	f.random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	if testing.Short() {
		faults = faults[:2]
	}
	for _, fault := range faults {
		began := time.Now()
		within(t, patience, "all slots are held", func() string { return h.all(began) })
		owner, standby := h.ownerAndStandby()
		t.Logf("%s: %s (%s, %s)", clockTime(), fault.name, owner.name, standby.name)
		at := time.Now()
		fault.do(f, owner, standby)
		within(t, fault.within, "after "+fault.name+", all slots can be had", func() string { return h.all(at) })
		t.Logf("all slots could be had after %v", time.Since(at).Round(time.Millisecond))
		f.pass(f.between(0, 4*time.Second))
		f.heal()
		f.whole(agreeTime)
	}

	for _, i := range f.random.Perm(len(f.nodes)) {
		f.nodes[i].stop()
		f.pass(f.between(0, 2*time.Second))
		f.nodes[i].up()
		f.whole(agreeTime)
	}
	h.judge()
}

// TestG11_SlotsOfAFullDisk: the disk of the slots' owner hangs or is full.
// Owner and standby are in memory, so this changes nothing.
func TestG11_SlotsOfAFullDisk(t *testing.T) {
	onlyLong(t)
	f := emptyFleet(t, 3)
	f.disks((*node).smallDisk)
	t.Cleanup(f.close)
	f.open()
	f.write(slotRules)
	h := f.slotHolders("acme", 60)
	within(t, patience, "all slots are held", func() string { return h.all(time.Time{}) })
	owner, _ := h.ownerAndStandby()
	owner.fill()
	t.Logf("%s: the disk of %s is full", clockTime(), owner.name)
	for range 5 {
		f.pass(2 * time.Second)
		at := time.Now()
		within(t, afterOne, "with a full disk, all slots can be had", func() string { return h.all(at) })
	}
	owner.empty()
	f.whole(patience)
	h.judge()
}

// TestMostSlots tests the judge.
func TestMostSlots(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	h := &slotHolders{holds: []*hold{{at(1), at(5)}, {at(5), at(7)}, {at(2), at(6)}, {at(6), at(9)}}}
	most, _ := h.most()
	expect.Equal(t, most, 2, "held at once")
	h.holds = append(h.holds, &hold{at(3), at(4)})
	most, when := h.most()
	expect.Equal(t, most, 3, "held at once")
	expect.Equal(t, when, at(3), "when")
}
