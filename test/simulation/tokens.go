package simulation

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// phase is the state of a partition in a process.
type phase uint8

const (
	away phase = iota
	held
	freezing   // frozen, to be handed over
	handedOver // handed over, in a move that is not settled
	recovering // owned, but still waiting for the standby's copy
)

// holder is the process that has a partition's token, and the node's generation when it got the token.
type holder struct{ node, boot, generation int }

// isValid reports whether the token still exists: its holder was neither ended nor restarted.
func (h holder) isValid(a *agreed) bool {
	return h.boot == a.boots[h.node] && h.generation == a.generation[h.node]
}

// tokens is a process's part of the ring. The world's mutex guards it.
type tokens struct {
	view           *agreed
	generation     int // number of times that this node was ended, as far as it knows
	changed        chan struct{}
	phases         [ring.Partitions]phase
	lineages       [ring.Partitions]atomic.Uint64 // written under the mutex; read by holders of a shard, too
	copies         map[int]replica
	learned        map[int]int64
	heldPartitions []int // partitions whose token is here, in no order
	involved       []int // partitions in any phase but away, in no order
	debts          map[counters.Key]*debt
	progress       map[followerKey]*progress
	pushing        bool // a push is scheduled
	lagging        bool // some follower may lack a copy, even if the partition is empty
	sequence       uint64
	acks           chan struct{} // closed and replaced at each acknowledgement
}

func (t *tokens) init() {
	t.changed, t.learned = make(chan struct{}), map[int]int64{}
	t.acks = make(chan struct{})
	t.debts, t.progress = map[counters.Key]*debt{}, map[followerKey]*progress{}
	t.copies = map[int]replica{}
}

func (w *World) newLineage() uint64 { return w.control.Uint64() | 1 }

// authority implements limiter.ClusterConfig.Authority.
func (p *process) authority() bool {
	w := p.w
	if !p.hasInitialRules.Load() {
		return false // the caller holds the mutex
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return p.hasAuthority()
}

func (p *process) hasAuthority() bool {
	w := p.w
	if !p.alive || p.view == nil {
		return false
	}
	// Authority given to an earlier process of the node does not count.
	given := p.ready && (p.contact || w.now() < p.authorityUntil)
	return given && (!p.contact || p.generation == w.agreed.generation[p.index])
}

// Route implements limiter.Ownership; see [partitions.Keeper.Route].
func (p *process) Route(q int) partitions.Route {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.route(q)
}

func (p *process) route(q int) partitions.Route {
	v := p.view
	if v == nil {
		return partitions.Route{}
	}

	r := partitions.Route{Epoch: v.epoch, Revision: v.revision}
	from, to := v.from.Owner(q), v.to.Owner(q)
	r.Owner = from
	switch p.phases[q] {
	case held:
		r.Place, r.Owner = partitions.Here, p.id
	case handedOver:
		r.Place, r.Owner = partitions.Elsewhere, to
	case freezing, recovering:
		r.Place, r.Owner = partitions.Frozen, p.id
	default:
		r.Place = partitions.Elsewhere
		if from == p.id {
			r.Place = partitions.Frozen
		} else if from != to && p.learned[q] == v.revision {
			r.Owner = to
		}
	}

	r.Standby = v.from.Standby(q)
	if from != to {
		if r.Other = from; r.Owner == from {
			r.Other = to
		}
		if r.Owner == to {
			r.Standby = v.to.Standby(q)
		}
	}

	return r
}

// WaitUnfrozen implements limiter.Ownership.
func (p *process) WaitUnfrozen(ctx context.Context, q int) {
	for {
		p.w.mu.Lock()
		changed, place := p.changed, p.route(q).Place
		p.w.mu.Unlock()

		if place != partitions.Frozen {
			return
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// LearnOwner implements limiter.Ownership.
func (p *process) LearnOwner(q int, revision int64, owner ring.NodeID) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	v := p.view
	switch {
	case v == nil || revision != v.revision || v.from.Owner(q) == v.to.Owner(q):
	case owner == v.to.Owner(q):
		p.learned[q] = revision
	case owner == v.from.Owner(q):
		delete(p.learned, q)
	}
}

// announce wakes all goroutines that wait for a change.
func (p *process) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// setPhase changes a partition's phase and its gate.
func (p *process) setPhase(q int, next phase) {
	if p.phases[q] == next {
		return
	}

	if p.phases[q] == held {
		p.table.Shut(q)
		p.heldPartitions = slices.DeleteFunc(p.heldPartitions, func(m int) bool { return m == q })
	}

	switch {
	case next == away:
		p.involved = slices.DeleteFunc(p.involved, func(m int) bool { return m == q })
	case p.phases[q] == away:
		p.involved = append(p.involved, q)
	}

	if p.phases[q] = next; next == held {
		p.heldPartitions = append(p.heldPartitions, q)
		p.table.Open(q, p.lineages[q].Load())
	}

	p.announce()
}

// holdToken gives p a partition's token.
func (p *process) holdToken(q int, lineage uint64) {
	p.w.holders[q] = holder{p.index, p.boot, p.generation}
	if len(p.w.subjectsIn[q]) > 0 {
		p.w.ledger.Owners = append(p.w.ledger.Owners, Owner{At: p.w.now(), Partition: q, Node: p.index})
	}
	p.lineages[q].Store(lineage)
	p.lagging = true
	delete(p.copies, q)
	p.setPhase(q, held)
}

// beginAsOwner makes p the owner, with a new lineage that starts from p's counters.
func (p *process) beginAsOwner(q int, anew bool) {
	w := p.w
	w.noteLoss(q, anew)
	p.dropFollowers(q)
	p.holdToken(q, w.newLineage())
	p.absorbDebts(q)
	p.schedulePushLocked()
	if w.agreed.from != w.agreed.to {
		p.moveSoon(q)
	}
}

// applyAgreed applies an agreed state.
func (p *process) applyAgreed(a *agreed) {
	if p.view != nil && a.revision <= p.view.revision {
		return
	}

	if p.generation != a.generation[p.index] {
		p.forgetAll()
		p.generation = a.generation[p.index]
	}

	if old := p.view; old != nil {
		p.forgetFollowers(old, a)
	}

	p.view, p.lagging = a, true

	for _, q := range append(slices.Clone(p.involved), a.ownedBy(p.index)...) {
		p.updatePartition(a, q)
	}

	p.dropStaleCopies(a)
	p.announce()
	p.schedulePushLocked()
}

// dropStaleCopies drops copies of partitions that p no longer follows: they would be outdated when it does again.
func (p *process) dropStaleCopies(a *agreed) {
	if a.from != a.to {
		return
	}
	for q := range p.copies {
		if p.phases[q] == away && a.from.Standby(q) != p.id {
			p.table.Drop(q)
			delete(p.copies, q)
		}
	}
}

// forgetAll gives up every token and copy, because this node was ended.
func (p *process) forgetAll() {
	for q := range ring.Partitions {
		if p.phases[q] != away || p.copies[q].source != 0 {
			p.setPhase(q, away)
			delete(p.copies, q)
			p.table.Drop(q)
			p.markDebtsAbsent(q)
		}
	}
	clear(p.progress)
}

// updatePartition adapts a partition's phase to the agreed state.
func (p *process) updatePartition(a *agreed, q int) {
	from, to := a.from.Owner(q), a.to.Owner(q)

	switch p.phases[q] {
	case held, freezing, recovering:
		if from != p.id && (to != p.id || p.phases[q] != held) {
			p.setPhase(q, away)
		} else if from != to && p.phases[q] == held {
			p.moveSoon(q)
		}

	case handedOver:
		if from != p.id {
			p.setPhase(q, away)
		} else if !p.w.holders[q].isValid(a) {
			p.beginAsOwner(q, false)
		}

	case away:
		if from == p.id && !p.w.holders[q].isValid(a) {
			p.takeOver(q)
		} else if to == p.id && from != p.id && p.w.holders[q] == (holder{p.index, p.boot, p.generation}) {
			p.setPhase(q, held)
		}
	}
}

// takeOver starts p's ownership of a partition whose token has certainly no other holder.
func (p *process) takeOver(q int) {
	if alone := p.view.from.Standby(q).IsZero(); alone || p.copies[q].whole {
		p.beginAsOwner(q, alone)
		return
	}
	p.setPhase(q, recovering)
	w := p.w
	since := w.now()
	p.recover(q, since, w.randomDelay(2*time.Millisecond, 20*time.Millisecond))
}

// recover asks the standby for its copy. If the standby does not answer for as long as authority lasts, p begins anew.
func (p *process) recover(q int, since, wait time.Duration) {
	w := p.w
	w.after(wait, func() {
		if !p.alive || p.phases[q] != recovering {
			return
		}

		standby := indexOf(p.view.from.Standby(q))
		if standby < 0 {
			p.beginAsOwner(q, true)
			return
		}

		s := w.nodes[standby].process
		has := s.alive && s.copies[q].whole && s.generation == w.agreed.generation[standby]

		now := w.now()
		switch {
		case has && !w.net.blocked(now, p.index, standby) && !w.net.blocked(now, standby, p.index):
			p.copyFrom(s, q)
			delete(s.copies, q)
			s.dropCopiedDebts(q)
			p.beginAsOwner(q, false)
		case now-since > authorityTime:
			p.beginAsOwner(q, true)
		default:
			p.recover(q, since, pushInterval)
		}
	})
}
