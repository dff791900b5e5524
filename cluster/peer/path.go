package peer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

const (
	// firstProbation is how long a broken direct connection must work before it is
	// used again. If it breaks again within flapTime after its return to use, the
	// time doubles, up to maxProbation. A direct connection to a new process is
	// used at once.
	firstProbation = 5 * time.Second
	maxProbation   = 5 * time.Minute
	flapTime       = time.Minute
	// relaysTried is the number of nodes that are tried as the relay before a pause.
	relaysTried = 3
	// maxSeekPause is the longest pause between two searches for a path.
	maxSeekPause = 2 * time.Second
	// receivesFromTimeout is how long a node may take to answer whether it can be the relay.
	receivesFromTimeout = 100 * time.Millisecond
)

// A link's path is the direct connection or, while that is silent or broken, a
// tunnel through another node. Callers do not notice the difference. The search
// for a tunnel begins after silence of half of Config.Silence, so that a tunnel
// is usually ready when the direct connection counts as silent. The search is
// repeated, with growing pauses, until there is a path. Meanwhile, the direct
// connection is dialled again and again.
//
// A connection that breaks says nothing about the node at its other end: the
// relay may be gone, or a firewall may have started anew. So the node is
// dialled at once, and a relay is looked for. Until both have failed, the path
// is unsure; see [Peers.PathUnsure].

// currentConn returns the connection for calls, or nil if there is none.
func (l *link) currentConn() *conn {
	if l.avoidDirect.Load() {
		if t := l.tunnel.Load(); t != nil {
			return t
		}
	}
	return l.direct.Load()
}

// receivesDirectly reports whether the direct connection has just brought data.
func (l *link) receivesDirectly() bool {
	c := l.direct.Load()
	return l.kind == kindNear && c != nil && c.isReachable() &&
		l.peers.now()-c.lastReceived.Load() < int64(c.limits.untilUnreachable*2/5)
}

// onQuiet begins to look for another path. After a longer silence, it dials a
// second connection. The pulse calls onQuiet once c has been silent for at
// least half of the time that makes it unreachable.
func (l *link) onQuiet(c *conn) {
	if l.direct.Load() != c || l.kind != kindNear {
		return
	}
	l.startTunnelling()
	if c.silence >= secondDialAfter*c.limits.untilUnreachable {
		l.dialSecond(l.ctx, c)
	}
}

// stopUsing stops the use of c, which is silent or, if broken is true, has ended.
func (l *link) stopUsing(c *conn, broken bool) {
	isTunnel := l.tunnel.Load() == c
	if l.kind != kindNear || !isTunnel && l.direct.Load() != c {
		return // it was not in use any more
	}

	if isTunnel {
		l.needsAllRelays.Store(true)
	}

	// The path becomes unsure before the connection is given up: a check that finds
	// no path must not take the node for lost. If nothing has
	// come over c for so long that until is past, calls were using another path
	// already, and the loss of c says nothing new.
	until := c.lastReceived.Load() + int64(settleSilences*l.peers.config.Silence)
	if until > l.peers.now() {
		l.unsureBySearchUntil.Store(until)
		if broken && !isTunnel {
			l.unsureByDialUntil.Store(until)
		}
	}

	if isTunnel {
		l.tunnel.CompareAndSwap(c, nil)
		l.closeRaft(func(s *socket) bool { return s.relay == c.socket.relay })
	} else {
		l.stopUsingDirect(c)
	}
	wake.Signal(l.searchNow)
}

// isUnsure reports whether a connection to the node has just been lost, and the
// search for a relay or a dial may still find a path.
func (l *link) isUnsure() bool {
	return l.peers.now() < max(l.unsureBySearchUntil.Load(), l.unsureByDialUntil.Load())
}

// stopUsingDirect stops the use of the direct connection c, which is silent or
// broken; a nil c means that no connection could be made. Calls that fail
// because of that are sent again through a tunnel, if there is one.
func (l *link) stopUsingDirect(c *conn) {
	if l.kind != kindNear || l.direct.Load() != c || l.ctx.Err() != nil {
		return
	}

	l.losses.Add(1)
	defer l.startTunnelling()

	// If c is nil, this node can't dial the other one. Raft may still have a
	// connection that the other one has made.
	if c != nil {
		l.closeRaft(func(s *socket) bool { return s.relay.IsZero() && !s.tunnelled })
	}

	// A direct connection that was avoided already keeps its probation.
	if l.avoidDirect.Load() {
		return
	}

	// A connection that breaks again soon after it came back must work longer before
	// it is used again.
	probation := firstProbation

	back := l.directSince.Load()
	if back != 0 && l.peers.now()-back < int64(flapTime) {
		probation = min(max(probation, 2*time.Duration(l.probation.Load())), maxProbation)
	}

	l.probation.Store(int64(probation))
	l.avoidDirect.Store(true)
}

// closeRaft closes Raft's connections to the node over a path that is no longer
// used. Raft would wait for seconds on each of them. It dials again, and gets
// the path that is used now.
func (l *link) closeRaft(isUnused func(*socket) bool) {
	l.peers.closeSockets(func(s *socket) bool {
		return s.isRaft() && s.remote.Node == l.node && isUnused(s)
	})
}

// startTunnelling starts provideTunnel in the background, unless it is running
// or the link has ended.
func (l *link) startTunnelling() {
	if l.kind != kindNear || l.ctx.Err() != nil || l.tunnelling.Swap(true) {
		return
	}

	started := l.peers.spawn(func() {
		losses := l.provideTunnel()
		l.tunnelling.Store(false)

		// The direct connection was lost just when provideTunnel ended. stopUsingDirect
		// may have found provideTunnel still running, and useDirect may have undone
		// what it did.
		if l.losses.Load() != losses {
			l.avoidDirect.Store(true)
			l.startTunnelling()
		}
	})
	if !started {
		l.tunnelling.Store(false)
	}
}

// provideTunnel provides a tunnel until the direct connection has worked
// throughout its probation. It returns how often that had been lost by then.
func (l *link) provideTunnel() (losses int64) {
	ctx, cancel := context.WithCancel(l.ctx)
	// At most some twenty run at once: each ends within about handshakeTime, and
	// the pauses between them grow.
	var attempts sync.WaitGroup
	defer attempts.Wait()
	defer cancel()

	tick := l.peers.config.Silence / 5
	search := searchSchedule{firstPause: tick}
	search.restart(time.Now())
	var trial directTrial

	for l.ctx.Err() == nil {
		now := time.Now()
		losses = l.losses.Load() // before the look at the connection
		trial.update(now, l.receivesDirectly(), losses)

		// A second is enough for a connection that was slow for a moment and never
		// abandoned.
		probation := time.Second
		if l.avoidDirect.Load() {
			probation = time.Duration(l.probation.Load())
		}

		if trial.isPassed(now, probation) {
			cancel()
			// An attempt that succeeded after useDirect would leave a tunnel
			// that nobody ends.
			attempts.Wait()
			l.useDirect()
			return losses
		}

		wait := tick

		switch {
		case l.tunnel.Load() != nil:
			// If the tunnel is lost, the search begins at once.
			search.restart(now)
		case !trial.works():
			if !now.Before(search.next) {
				l.tryRelays(ctx, &attempts)
				search.delayNext()
			}
			wait = min(tick, time.Until(search.next))
		}

		select {
		case <-time.After(wait):
		case <-l.searchNow: // a connection was lost, and checks wait for the outcome of a search
			search.restart(time.Now())
		case <-l.ctx.Done():
		}
	}
	return losses
}

// searchSchedule says when provideTunnel searches for a relay. The pauses
// between its searches grow.
type searchSchedule struct {
	firstPause time.Duration
	pause      time.Duration // after the next search
	next       time.Time     // when to search next
}

// restart makes the next search due at the given time, and the pauses short again.
func (s *searchSchedule) restart(at time.Time) {
	s.next = at
	s.pause = s.firstPause
}

// delayNext delays the next search, because one has just ended without a tunnel
// or goes on in the background.
func (s *searchSchedule) delayNext() {
	s.next = time.Now().Add(s.pause - rand.N(s.pause/2))
	s.pause = min(2*s.pause, maxSeekPause)
}

// directTrial says for how long the direct connection has worked.
type directTrial struct {
	since  time.Time // when it began to work; zero if it does not
	losses int64     // how often it had been lost by the last update
}

// update notes whether the direct connection works at this moment, and how often
// it has been lost.
func (t *directTrial) update(now time.Time, works bool, losses int64) {
	switch {
	case !works:
		t.since = time.Time{}
	case t.since.IsZero() || losses != t.losses:
		t.since = now
	}
	t.losses = losses
}

// works reports whether the direct connection worked at the last update.
func (t *directTrial) works() bool { return !t.since.IsZero() }

// isPassed reports whether the direct connection has worked throughout its
// probation.
func (t *directTrial) isPassed(now time.Time, probation time.Duration) bool {
	return t.works() && now.Sub(t.since) >= probation
}

// useDirect uses the direct connection again. Calls in the tunnel may finish.
func (l *link) useDirect() {
	if l.avoidDirect.Swap(false) {
		l.directSince.Store(l.peers.now())
	}
	l.needsAllRelays.Store(false)

	if t := l.tunnel.Load(); t != nil {
		t.retire()
		l.tunnel.CompareAndSwap(t, nil)
		l.closeRaft(func(s *socket) bool { return !s.relay.IsZero() })

		if l.tunnelLog.end() {
			l.peers.log.Info("a node is reached directly again", "name", l.label(), "address", l.address)
		}
	}
}

// tryRelays tries some nodes as the relay, one after another. It does not wait
// long for any of them: links often break together, and a node whose own link
// has just broken still offers to be the relay. tryRelays returns once there is
// a tunnel, or once the last attempt has failed or takes long.
func (l *link) tryRelays(ctx context.Context, attempts *sync.WaitGroup) {
	// A loss during this search changes unsureBySearchUntil, and keeps the path
	// unsure.
	until := l.unsureBySearchUntil.Load()
	relays, isEachTried := l.relayCandidates()

	// Attempts may go on after tryRelays has returned. Once all of this round have
	// ended, concludeSearch says whether the search has failed.
	var round sync.WaitGroup
	var undecided atomic.Bool
	undecided.Store(l.needsAllRelays.Load() && !isEachTried)
	defer attempts.Go(func() { l.concludeSearch(&round, &undecided, until) })

	for _, relay := range relays {
		ended := make(chan struct{})
		round.Add(1)
		attempts.Go(func() {
			defer round.Done()
			if l.openTunnel(ctx, relay) == relayUnsure {
				undecided.Store(true)
			}
			close(ended)
		})

		// If the attempt takes longer, the next relay is tried beside it.
		select {
		case <-ended:
		case <-time.After(l.peers.config.Silence / 10):
		}

		if l.tunnel.Load() != nil {
			return
		}
	}
}

// concludeSearch waits for the attempts of a round. If none of them can help,
// the search has failed. The exceptions are an attempt that is undecided and a
// node that is being dialled again: a relay may help in a moment, so the path
// stays unsure until the given time.
func (l *link) concludeSearch(round *sync.WaitGroup, undecided *atomic.Bool, until int64) {
	round.Wait()
	if !undecided.Load() && !l.peers.isAnyRedialled(l) {
		l.unsureBySearchUntil.CompareAndSwap(until, 0)
	}
}

// isAnyRedialled reports whether this node has just lost another node than l's,
// and dials it: that node may be there again in a moment, and be the relay.
func (p *Peers) isAnyRedialled(l *link) bool {
	now := p.now()
	for _, r := range *p.links.Load() {
		if r != l && now < r.unsureByDialUntil.Load() {
			return true
		}
	}
	return false
}

// openTunnel opens a tunnel through a relay that receives data from the node,
// unless another attempt opens one first. It returns the relay's answer.
func (l *link) openTunnel(ctx context.Context, relay *link) (answer relayAnswer) {
	via := relay.direct.Load()
	if via == nil {
		return relayNo
	}

	answers := make(chan relayAnswer, 1)
	_, err := via.startCall(methodReceivesFrom, l.node[:], receivesFromTimeout, func(reply []byte, err error) {
		if err != nil || len(reply) != 1 {
			reply = []byte{byte(relayNo)}
		}
		answers <- relayAnswer(reply[0])
	})
	if err != nil {
		return relayNo
	}

	answer = <-answers
	if answer != relayYes {
		return answer
	}

	s, err := l.peers.dialVia(ctx, relay, l, kindNear)
	if err != nil {
		return answer
	}

	// Several attempts may succeed at a time. The first one wins.
	c := l.peers.newConn(s, true)
	c.link = l
	c.limits.untilClosed = c.limits.untilUnreachable // a silent tunnel is replaced, not waited for
	if !l.tunnel.CompareAndSwap(nil, c) {
		s.Close()
		return answer
	}

	started := l.peers.spawn(func() {
		err := c.run(l.ctx)
		if l.ctx.Err() == nil {
			l.peers.log.Debug("the tunnel to a node has ended", "name", l.label(), "relay", relay.label(), "error", err)
		}
	})
	if !started {
		c.closeWithError(ErrClosed)
		return answer
	}

	times, due := l.tunnelLog.begin()
	if due {
		l.peers.log.Info("a node is reached through a relay", "name", l.label(),
			"address", l.address, "relay", relay.label(), "times", times)
	}
	return answer
}

// relayCandidates returns the nodes to try in this round, from those that this
// node hears directly. Their order depends on the two ends, so that no node
// relays all tunnels, and the leader comes last. Each round continues where the
// previous one stopped. all reports whether chosen has every candidate.
func (l *link) relayCandidates() (chosen []*link, all bool) {
	leader := l.peers.config.Leader()
	self := l.peers.config.Self().Node
	weigh := func(r *link) uint64 {
		if r.node == leader {
			return math.MaxUint64
		}
		sum := sha256.Sum256(slices.Concat(self[:], l.node[:], r.node[:]))
		return binary.BigEndian.Uint64(sum[:]) >> 1 // below the weight of the leader
	}

	relays := slices.Collect(maps.Values(*l.peers.links.Load()))
	relays = slices.DeleteFunc(relays, func(r *link) bool { return r == l || !r.receivesDirectly() })
	slices.SortFunc(relays, func(a, b *link) int { return cmp.Compare(weigh(a), weigh(b)) })

	for i := range min(len(relays), relaysTried) {
		chosen = append(chosen, relays[(l.nextRelay+i)%len(relays)])
	}

	if len(relays) > 0 {
		l.nextRelay = (l.nextRelay + len(chosen)) % len(relays)
	}
	return chosen, len(chosen) == len(relays)
}

// Via returns the relay through which a node is currently reached. It returns
// false if the node is reached directly, or not at all.
func (p *Peers) Via(to ring.NodeID) (relay ring.NodeID, ok bool) {
	if c := p.pathTo(to); c != nil {
		relay = c.socket.relay
	}
	return relay, !relay.IsZero()
}

// sendOver calls send with the connection to a node. If certainly nothing was
// sent, because the connection was replaced or lost in between, sendOver calls
// send again with the new one.
func (p *Peers) sendOver(to ring.NodeID, send func(*conn) error) error {
	l := (*p.links.Load())[to]
	if l == nil {
		return errNoConnection
	}

	err := errNoConnection
	var last *conn
	for range 3 {
		c := l.currentConn()
		if c == nil || c == last {
			break
		}

		last = c
		err = send(c)
		if !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrNotSent) {
			return err
		}
	}
	return err
}
