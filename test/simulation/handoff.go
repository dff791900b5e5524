package simulation

import "time"

// Times of a hand-over. A real one takes as long as its copy, and freezes the partition for a round trip or two.
const (
	latestMove = 800 * time.Millisecond
	moveAgain  = 150 * time.Millisecond
	minFreeze  = time.Millisecond
	maxFreeze  = 12 * time.Millisecond
)

// moveSoon starts the hand-over of q by p after a short delay.
func (p *process) moveSoon(q int) {
	w := p.w
	w.after(w.randomDelay(10*time.Millisecond, latestMove), func() { p.move(q) })
}

// movableTo returns the process that would receive q, and reports whether p can hand q over now.
func (p *process) movableTo(q int) (to *process, ok bool) {
	w := p.w
	if !p.alive || p.view == nil || p.view.from == p.view.to {
		return nil, false
	}
	to = w.process(p.view.to.Owner(q))
	now := w.now()
	ok = to != p && to.alive && to.view == p.view && p.hasAuthority() && to.hasAuthority() &&
		!w.net.blocked(now, p.index, to.index) && !w.net.blocked(now, to.index, p.index)
	return to, ok
}

// move freezes q and hands it over, provided that both ends reach each other throughout.
func (p *process) move(q int) {
	w := p.w
	if !p.alive || p.phases[q] != held || p.view.from == p.view.to || p.view.to.Owner(q) == p.id {
		return
	}
	if _, ok := p.movableTo(q); !ok {
		w.after(moveAgain, func() { p.move(q) })
		return
	}

	p.setPhase(q, freezing)
	w.after(w.randomDelay(minFreeze, maxFreeze), func() {
		if !p.alive || p.phases[q] != freezing {
			return
		}

		to, ok := p.movableTo(q)
		if !ok {
			p.setPhase(q, held)
			w.after(moveAgain, func() { p.move(q) })
			return
		}

		to.copyFrom(p, q)
		p.setPhase(q, handedOver)
		to.holdToken(q, p.lineages[q].Load())
		to.absorbDebts(q)
		to.schedulePushLocked()
		w.ledger.Counts.Moved++
	})
}
