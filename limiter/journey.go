package limiter

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/partitions"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// journey is a check on its way to those who decide it. It is kept in its Answer for the next one.
//
// Its parts are the subjects. Those that this node decides come first, in one Take; then the others are asked, all at
// once, one message for each node. Whoever can't be asked is replaced by the next on the part's way: the node that it
// named instead, the other end of a move, the standby, and at last this node by itself. As soon as one refuses, what
// the others took is given back.
type journey struct {
	limiter *Limiter
	answer  *Answer
	book    *book
	now     algorithms.Now
	peek    bool
	last    bool // the rules may be older than the owner's
	turn    int
	until   time.Time // the check is decided by then
	thaw    time.Time // until then a frozen partition is waited for

	parts   []part
	asks    []*ask // under way
	behind  int64  // the version of the rules that an owner has and this node has not; 0: none
	refused bool

	private []counters.Op      // of the parts decided by this node alone
	shares  []algorithms.Limit // that private refers to
	ways    []wayOf
	list    []int
	local   []counters.Op
}

// part is one subject of a check.
type part struct {
	first, n  int // its ops
	hit       int // its place in the match
	hi        uint64
	terms     localcache.Terms // of its leases
	state     partState
	by        DecidedBy
	admitted  bool // with those decided together
	withdrawn bool // its decisions are told as without the cost
	acted     bool // this node has tried to act as the standby
	leant     bool // another one was asked to
	again     bool // one that could not be reached was asked again
	why       partitions.Absence
	hint      ring.NodeID
	tried     []ring.NodeID // could not be asked, or may not decide
	passed    []ring.NodeID // said that it is another's, since the last look at the whole way

	// What holds its cost, where it was admitted.
	here    bool
	lineage uint64
	when    algorithms.Now
	private int // 1 + place of its ops in journey.private; 0: none
	ask     *ask
	receipt localcache.Receipt // of its lease
}

type partState uint8

const (
	partOpen partState = iota
	partAsked
	partDecided
)

// way is how a part may be decided next.
type way uint8

const (
	wayHere    way = iota // from the counters here
	wayWait               // the partition is being handed over
	wayOwner              // ask who should be the owner
	wayStandby            // ask the standby, or who has handed over to the owner
	wayAct                // this node is the one
	wayAlone              // by `on_partition`
	wayOver               // from its lease: it is decided
)

type wayOf struct {
	part  int
	way   way
	to    ring.NodeID
	owner ring.NodeID // of whom leases may come with the answer
}

// begin puts a check on its way. Replies are not waited for.
func (c *journey) begin() {
	a := c.answer
	c.parts, c.asks, c.private, c.shares = c.parts[:0], c.asks[:0], c.private[:0], c.shares[:0]
	c.behind, c.refused, c.turn = 0, false, 0
	c.list = c.list[:0]
	first := 0
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		var terms localcache.Terms
		if !a.scratch.reserving {
			terms = c.limiter.member.termsOf(h.Rule, h.Limits)
		}
		c.enlist(part{first: first, n: opsOf(h), hit: i, hi: h.Subject.Hi, terms: terms})
		first += opsOf(h)
		if h.Rule.Consistency == rules.Local {
			c.list = append(c.list, i)
		}
	}
	if len(c.list) > 0 {
		c.alone(c.list, ByOwner)
	}
	if !c.refused {
		c.step()
	}
}

// enlist adds a part, with what room the one in its place had for lists.
func (c *journey) enlist(p part) {
	if n := len(c.parts); n < cap(c.parts) {
		old := &c.parts[:n+1][n]
		p.tried, p.passed = old.tried[:0], old.passed[:0]
	}
	c.parts = append(c.parts, p)
}

// run waits for the replies and goes on until the check is decided. It reports false when it has to be asked anew,
// by newer rules.
func (c *journey) run() bool {
	for {
		c.collect()
		switch {
		case c.behind > 0 && !c.last:
			c.giveBack()
			return false
		case c.refused:
			c.refuse()
			return true
		case !slices.ContainsFunc(c.parts, func(p part) bool { return p.state != partDecided }):
			c.answer.Allowed = true
			c.conclude()
			return true
		}
		c.turn++
		c.step()
	}
}

// step sends each open part on its next way.
func (c *journey) step() {
	for turn := 0; ; turn++ {
		c.ways, c.list = c.ways[:0], c.list[:0]
		for i := range c.parts {
			if c.parts[i].state != partOpen || c.held(i) {
				continue
			}
			w := c.next(&c.parts[i])
			if w.way == wayOver {
				continue
			}
			if w.part = i; w.way == wayHere {
				c.list = append(c.list, i)
			}
			c.ways = append(c.ways, w)
		}
		if c.refused {
			return
		}
		if len(c.list) == 0 || turn > 0 && time.Now().After(c.thaw) {
			break
		}
		if turn > 0 {
			time.Sleep(turnPause) // a gate is just being shut: the route will tell
		}
		// Those that are not decided by this are looked at again.
		if c.here(c.list); c.refused {
			return
		}
	}
	c.list = c.list[:0]
	for _, w := range c.ways {
		if w.way == wayAlone || w.way == wayHere {
			c.list = append(c.list, w.part)
		}
	}
	if len(c.list) > 0 {
		if c.alone(c.list, ByFallback); c.refused {
			return
		}
	}
	if c.send(); len(c.asks) == 0 {
		c.act()
	}
}

// next is p's next way. A frozen partition is waited for.
func (c *journey) next(p *part) wayOf {
	m := c.limiter.member
	r := m.Ownership.Route(partitionOf(p.hi))
	if c.frozen(p, &r) {
		ctx, cancel := context.WithDeadline(context.Background(), c.thaw)
		for turn := 0; turn < maxTurns && c.frozen(p, &r) && ctx.Err() == nil; turn++ {
			m.Ownership.Wait(ctx, partitionOf(p.hi))
			r = m.Ownership.Route(partitionOf(p.hi))
		}
		cancel()
		c.now = c.limiter.clock.Now()
	}
	if isHeld(&r) && !slices.Contains(p.tried, m.Self) {
		return wayOf{way: wayHere}
	}
	if r.Place == partitions.Elsewhere && c.lease(p, r.Owner) {
		return wayOf{way: wayOver}
	}
	if c.turn >= maxTurns || !time.Now().Before(c.until) {
		return wayOf{way: wayAlone}
	}
	w := c.wayBy(p, &r)
	if w.way == wayAlone && len(p.passed) > 0 && time.Now().Before(c.thaw) {
		// Nobody is out of reach: the partition is on its way from one to the other. Counting alone now would admit
		// more than the limit in a healthy cluster.
		time.Sleep(min(turnPause<<min(c.turn, 6), maxTurnPause))
		p.passed, p.hint = p.passed[:0], ring.NodeID{}
		r = m.Ownership.Route(partitionOf(p.hi))
		w = c.wayBy(p, &r)
	}
	return w
}

// wayBy is p's next way to whom a route and the last answer name.
func (c *journey) wayBy(p *part, r *partitions.Route) wayOf {
	self := c.limiter.member.Self
	if isHeld(r) && !slices.Contains(p.tried, self) {
		return wayOf{way: wayHere}
	}
	for _, id := range [...]ring.NodeID{p.hint, r.Owner, r.Other} {
		if !id.IsZero() && id != self && !p.hasTried(id) {
			return wayOf{way: wayOwner, to: id, owner: id}
		}
	}
	// While it moves, who has handed it over has a copy that is kept up.
	away := !r.Other.IsZero() && slices.Contains(p.tried, r.Owner)
	switch {
	case away && r.Other == self && !p.acted:
		return wayOf{way: wayAct}
	case away && r.Other != self && !p.leant:
		return wayOf{way: wayStandby, to: r.Other, owner: r.Owner}
	case r.Standby.IsZero() || p.hasTried(r.Standby):
	case r.Standby != self:
		return wayOf{way: wayStandby, to: r.Standby, owner: r.Owner}
	case !p.acted:
		return wayOf{way: wayAct}
	}
	return wayOf{way: wayAlone}
}

func (p *part) hasTried(id ring.NodeID) bool {
	return slices.Contains(p.tried, id) || slices.Contains(p.passed, id)
}

func (p *part) try(id ring.NodeID) {
	if !p.hasTried(id) {
		p.tried = append(p.tried, id)
	}
}

func (p *part) untry(id ring.NodeID) {
	p.tried = slices.DeleteFunc(p.tried, func(t ring.NodeID) bool { return t == id })
}

// ops are p's in the check.
func (c *journey) ops(p *part) []counters.Op { return c.answer.scratch.ops[p.first : p.first+p.n] }

// here takes for parts from the counters here. Where a gate is shut meanwhile they stay open.
func (c *journey) here(list []int) {
	l := c.limiter
	m := l.member
	c.local = c.local[:0]
	for _, i := range list {
		p := &c.parts[i]
		p.lineage = m.Ownership.Lineage(partitionOf(p.hi)) // before the Take: see decideFor
		c.local = append(c.local, c.ops(p)...)
	}
	began := m.clock()
	verdict := counters.Shut
	authority := m.Authority()
	if authority {
		verdict = l.verdict(c.now, c.local, c.peek)
		authority = m.Authority()
	}
	if authority && verdict == counters.Shut {
		return
	}
	rest := c.local
	for _, i := range list {
		p := &c.parts[i]
		if !authority {
			p.try(m.Self) // cut off: what was taken stays taken
			continue
		}
		copy(c.ops(p), rest)
		rest = rest[p.n:]
		p.settle(ByOwner, verdict == counters.Admitted)
		p.here, p.when = true, c.now
		m.recordAll(ByOwner, c.ops(p), []uint64{p.lineage}, began, 1)
	}
	c.refused = c.refused || authority && verdict == counters.Refused
}

// settle notes that p was decided, with others, and refused by itself or by one of them.
func (p *part) settle(by DecidedBy, admitted bool) {
	p.state, p.by, p.admitted, p.withdrawn = partDecided, by, admitted, !admitted
}

// send asks other nodes: at first each one about all that is its own, later about each part by itself.
func (c *journey) send() {
	m, asked := c.limiter.member, c.ways[:0]
	for _, w := range c.ways {
		switch {
		case w.way != wayOwner && w.way != wayStandby:
		case m.Peers.Reachable(w.to):
			asked = append(asked, w)
		default: // the call would fail at once
			c.parts[w.part].try(w.to)
			m.figures.failed.Add(1)
		}
	}
	slices.SortFunc(asked, func(a, b wayOf) int {
		return cmp.Or(cmp.Compare(a.way, b.way), a.to.Compare(b.to), cmp.Compare(c.parts[a.part].hi, c.parts[b.part].hi))
	})
	for i, w := range asked {
		p := &c.parts[w.part]
		p.try(w.to)
		p.state = partAsked
		p.leant = p.leant || w.way == wayStandby
		if i == 0 || c.turn > 0 || w.way != asked[i-1].way || w.to != asked[i-1].to {
			c.asks = append(c.asks, c.ask(w))
		}
		p.ask = c.asks[len(c.asks)-1]
		c.enter(p)
	}
	together := c.turn == 0 && len(c.asks) == 1 && asked[0].way == wayOwner
	for _, a := range c.asks {
		c.limiter.send(a, together)
	}
}

// enter makes p part of its question.
func (c *journey) enter(p *part) {
	a := p.ask
	if !p.terms.None() && !c.peek && a.terms == nil {
		a.terms = make([]localcache.Terms, subjectsOf(a.q.ops))
	}
	if a.terms != nil {
		a.terms = append(a.terms, p.terms)
	}
	h := &c.answer.scratch.match.Hits[p.hit]
	a.rule, a.limits = h.Rule, h.Limits
	a.q.ops = append(a.q.ops, c.ops(p)...)
}

// ask is a question, without ops yet.
func (c *journey) ask(w wayOf) *ask {
	a := &ask{to: w.to, owner: w.owner, until: c.until, done: make(chan struct{}, 1)}
	a.q.verb, a.q.version = verbCheck, c.book.set.Version
	a.q.revision = c.limiter.member.Ownership.Route(partitionOf(c.parts[w.part].hi)).Revision
	if c.peek {
		a.q.flags |= flagPeek
	}
	if c.last && c.limiter.member.Authority() { // without, it may be behind for long
		a.q.flags |= flagLast
	}
	if w.way == wayStandby {
		a.q.flags |= flagStandby
	}
	return a
}

// act decides what is left of the ways as the standby.
func (c *journey) act() {
	for i := range c.parts {
		p := &c.parts[i]
		if p.state != partOpen || p.acted || c.refused || c.held(i) {
			continue
		}
		if w := c.next(p); w.way != wayAct {
			continue
		}
		p.acted = true
		m := c.limiter.member
		began := m.clock()
		if v := c.limiter.act(c.now, c.ops(p), c.peek, p.why); v != counters.Shut {
			p.settle(ByStandby, v == counters.Admitted)
			m.recordAll(ByStandby, c.ops(p), []uint64{0}, began, 1)
			c.refused = v == counters.Refused
		}
	}
}

// collect waits for the replies under way.
func (c *journey) collect() {
	for _, a := range c.asks {
		came := a.wait()
		if came && a.err == nil && a.status == behind {
			c.behind = max(c.behind, a.version)
		}
		rest := a.q.ops
		for _, i := range c.inOrder(a) {
			p := &c.parts[i]
			c.answered(p, a, came, rest[:p.n])
			rest = rest[p.n:]
		}
		if came && a.err == nil && a.status == decided && !a.admitted {
			c.refused = true
		}
	}
	c.asks = c.asks[:0]
}

// inOrder lists a's parts in the order of its ops.
func (c *journey) inOrder(a *ask) []int {
	c.list = c.list[:0]
	for i := range c.parts {
		if c.parts[i].state == partAsked && c.parts[i].ask == a {
			c.list = append(c.list, i)
		}
	}
	slices.SortFunc(c.list, func(x, y int) int { return cmp.Compare(c.parts[x].hi, c.parts[y].hi) })
	return c.list
}

// answered takes over what a says about p; ops are those of p in a.
func (c *journey) answered(p *part, a *ask, came bool, ops []counters.Op) {
	p.state = partOpen
	switch {
	case !came, errors.Is(a.err, peer.ErrTimeout), a.err != nil:
		p.ask = nil
		if came && errors.Is(a.err, peer.ErrUnreachable) && !p.again && c.limiter.member.Peers.Reachable(a.to) {
			p.again = true // the way to it broke, and there is another one. It may have counted: that only costs
			p.untry(a.to)
		}
	case a.status == decided:
		by := ByForward
		switch {
		case a.standby:
			by = ByStandby
		case a.leased:
			by = ByLease
		}
		copy(c.ops(p), ops)
		p.settle(by, a.admitted)
	case a.status == noAuthority:
		p.why = partitions.Powerless
	case a.status == unreachable:
		c.limiter.member.Ownership.Learn(partitionOf(p.hi), a.revision, a.hint)
	case a.status == undecided:
		p.untry(a.to)
	case a.status == notMine:
		p.untry(a.to)
		p.passed = append(p.passed, a.to)
		if p.hint = a.hint; !a.hint.IsZero() {
			c.limiter.member.Ownership.Learn(partitionOf(p.hi), a.revision, a.hint)
		}
	}
}
