package partitions

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

const (
	// messageSize is the size in bytes at which a message is full and is sent.
	messageSize = 128 << 10
	// maxUnacked is the number of unacknowledged bytes above which a follower gets no further copies.
	maxUnacked = 4 << 20
	// maxBehind is the number of unacknowledged bytes above which a follower gets whole copies instead of changes.
	maxBehind = 32 << 20
	// pushTimeout bounds how long an acknowledgement may take.
	pushTimeout = 2 * time.Second
	// probeInterval is the time after which a follower gets an empty message if there was no other. So each owner notices a
	// follower that does not answer even while nothing changes.
	probeInterval = time.Second
	// lagTime is how long a follower may leave messages unanswered before it counts as lagging.
	lagTime = 5 * time.Second
)

// followers are the nodes that get copies of partitions whose tokens are here. Keeper.mu guards them, except for the fields
// that only the loop uses.
type followers map[ring.NodeID]*follower

// follower is this node's view of one node that gets copies.
type follower struct {
	node     ring.NodeID
	progress [ring.Partitions]*progress // nil if no copy was begun
	unacked  int                        // bytes
	// lastMessage is the number of the last message; inFlight are the numbers of unacknowledged messages, in order.
	lastMessage uint64
	inFlight    []uint64
	// lastSent is when the last message was sent. silentSince is when the follower's present silence began: at its last
	// answer or, if that left no message unanswered, at the next message. It is zero while no message is unanswered.
	lastSent, silentSince time.Time

	// The message being assembled; only the loop uses it.
	message  []byte
	sections []sentSection // the sections in it
}

// progress is the state of a follower's copy of one partition.
type progress struct {
	whole    bool // it has acknowledged the whole copy
	inFlight int  // unacknowledged messages about the partition
}

// sentSection is a section of a message to a follower.
type sentSection struct {
	p        int
	copy     bool      // part of a whole copy
	ends     bool      // completes a whole copy
	progress *progress // the progress it counts towards; nil if the follower needs a new copy
}

// followerOf returns node's follower, which it creates if needed.
func (fs followers) followerOf(node ring.NodeID) *follower {
	if fs[node] == nil {
		fs[node] = &follower{node: node}
	}
	return fs[node]
}

// progressOf returns node's progress with p; nil if no copy was begun.
func (fs followers) progressOf(p int, node ring.NodeID) *progress {
	if f := fs[node]; f != nil {
		return f.progress[p]
	}
	return nil
}

// synced reports whether node has a whole copy of p; true if node is zero.
func (fs followers) synced(p int, node ring.NodeID) bool {
	pr := fs.progressOf(p, node)
	return node.IsZero() || pr != nil && pr.whole
}

// forgetCopies forgets the followers' copies of p, so they get new ones.
func (fs followers) forgetCopies(p int) {
	for _, f := range fs {
		f.progress[p] = nil
	}
}

// update brings the followers of self in line with a new view. It forgets a node's progress with partitions that the node
// no longer follows: if it follows them again later, its copies will be out of date. It also forgets nodes that restarted
// or were ended, because they have lost their copies.
func (fs followers) update(v, before *view, self ring.NodeID) {
	var buf [3]ring.NodeID
	follow := map[ring.NodeID]bool{}
	for p := range ring.Partitions {
		if from, to := v.Owner(p); from == self || to == self {
			for _, node := range v.followersOf(self, p, buf[:0]) {
				follow[node] = true
			}
		}
	}
	maps.DeleteFunc(fs, func(node ring.NodeID, f *follower) bool {
		for p := range f.progress {
			if f.progress[p] != nil && !slices.Contains(v.followersOf(self, p, buf[:0]), node) {
				f.progress[p] = nil
			}
		}
		return !follow[node] || v.Boot(node) != before.Boot(node) || v.Generation(node) != before.Generation(node)
	})
}

// messageSent records that f's message is being sent, and returns its number.
func (f *follower) messageSent() uint64 {
	for i := range f.sections {
		one := &f.sections[i]
		if one.progress = f.progress[one.p]; one.progress != nil {
			one.progress.inFlight++
		}
	}
	f.unacked += len(f.message)
	f.lastMessage++
	if f.lastSent = time.Now(); f.silentSince.IsZero() {
		f.silentSince = f.lastSent
	}
	f.inFlight = append(f.inFlight, f.lastMessage)
	return f.lastMessage
}

// messageAnswered records the answer to a message. The follower needs a new copy of each partition that it declined.
func (f *follower) messageAnswered(number uint64, size int, sections []sentSection, refused map[int]bool, err error) {
	f.unacked -= size
	f.inFlight = slices.DeleteFunc(f.inFlight, func(n uint64) bool { return n == number })
	if isAnswer(err) {
		if f.silentSince = (time.Time{}); len(f.inFlight) > 0 {
			f.silentSince = time.Now()
		}
	}
	for _, one := range sections {
		if one.progress == nil {
			continue
		}
		one.progress.inFlight--
		switch {
		case f.progress[one.p] != one.progress:
		case err != nil || refused[one.p]:
			f.progress[one.p] = nil
		case one.ends:
			one.progress.whole = true
		}
	}
}

// followersOf lists the nodes that should have copies of p while its token is here: the standby and, during a move, the
// other side. If one side is lost, the other continues from its copy.
func (v *view) followersOf(self ring.NodeID, p int, buf []ring.NodeID) []ring.NodeID {
	from, to := v.Owner(p)
	both := [2]ring.NodeID{from, v.To.Standby(p)}
	switch {
	case from == to:
		both[0] = v.From.Standby(p) // it would take over before the ring is settled
	case from == self:
		both = [2]ring.NodeID{to, v.From.Standby(p)}
	}
	return appendOthers(self, buf, both[:]...)
}

// appendOthers appends to buf the nodes that are neither zero nor self, each once.
func appendOthers(self ring.NodeID, buf []ring.NodeID, nodes ...ring.NodeID) []ring.NodeID {
	for _, id := range nodes {
		if !id.IsZero() && id != self && !slices.Contains(buf, id) {
			buf = append(buf, id)
		}
	}
	return buf
}

// pushesChanges reports whether this node makes changes in p that its followers need.
func (k *Keeper) pushesChanges(p int) bool {
	ph := phase(k.phases[p].Load())
	return ph == owning || ph == freezing
}

// pushChanges sends the changes since the last call to all followers. It runs in the loop.
func (k *Keeper) pushChanges() {
	if k.neverFollowed() {
		return
	}
	collect := func(begins bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.collecting = begins
	}
	collect(true)
	k.debiting.Lock()
	_ = k.cfg.Table.Replicate(k.pushesChanges, func(p int, records []counters.Record) error {
		k.pushTo(p, records)
		return nil
	})
	k.debiting.Unlock()
	collect(false)
	k.flushAll()
}

// pushTo adds changes in p to the messages for the followers that have an earlier copy, or are getting one.
func (k *Keeper) pushTo(p int, records []counters.Record) {
	k.mu.Lock()
	k.parts[p].round++
	at := k.parts[p].version
	k.mu.Unlock()
	var buf [3]ring.NodeID
	for _, node := range k.view.Load().followersOf(k.cfg.Self, p, buf[:0]) {
		k.mu.Lock()
		f := k.followers.followerOf(node)
		pr := f.progress[p]
		if pr != nil && f.unacked > maxBehind {
			f.progress[p], pr = nil, nil
			k.unfinished = true
		}
		k.mu.Unlock()
		if pr != nil {
			k.appendRecords(f, &section{p: p, version: at}, records)
		}
	}
}

// pushCopies sends copies to the followers that have none, as long as they keep up. It reports whether copies were missing.
// It runs in the loop.
func (k *Keeper) pushCopies() (missed bool) {
	v := k.view.Load()
	if !v.member || v.From == nil || k.neverFollowed() {
		return false
	}
	var buf [3]ring.NodeID
	type target struct {
		node ring.NodeID
		p    int
	}
	var missing []target
	k.mu.Lock()
	for p := range ring.Partitions {
		if !k.pushesChanges(p) {
			continue
		}
		for _, node := range v.followersOf(k.cfg.Self, p, buf[:0]) {
			if k.followers.progressOf(p, node) == nil {
				missing = append(missing, target{node, p})
			}
		}
	}
	k.mu.Unlock()
	for _, m := range missing {
		k.copyTo(v, m.node, m.p)
	}
	k.flushAll()
	return len(missing) > 0
}

// copyTo sends a whole copy of p to node, a follower in v, unless node already has one or has too much unacknowledged.
func (k *Keeper) copyTo(v *view, node ring.NodeID, p int) {
	k.mu.Lock()
	f := k.followers.followerOf(node)
	if k.view.Load() != v || f.progress[p] != nil || f.unacked > maxUnacked || !k.canSendTo(node) {
		k.mu.Unlock()
		return
	}
	// From here on, changes are sent, too; earlier ones are in the copy.
	f.progress[p] = &progress{}
	s := section{p: p, version: k.parts[p].version, flags: sectionCopy | sectionBegins}
	k.mu.Unlock()
	k.debiting.Lock()
	_ = k.cfg.Table.Copy(p, func(records []counters.Record) error {
		k.appendRecords(f, &s, records)
		return nil
	})
	k.debiting.Unlock()
	s.flags |= sectionEnds
	k.appendRecords(f, &s, nil)
}

// appendRecords appends records of s.p to the message for f, in as many sections as needed, and sends the message whenever it is
// full. Afterwards s is the head of the next section.
func (k *Keeper) appendRecords(f *follower, s *section, records []counters.Record) {
	now := k.cfg.Now()
	for more := true; more; more = len(records) > 0 {
		if len(f.message) == 0 {
			f.message = k.nextHeader(f.message)
		}
		f.message, records = s.append(f.message, records, now)
		f.sections = append(f.sections, sentSection{
			p: s.p, copy: s.flags&sectionCopy != 0, ends: s.flags&sectionEnds != 0 && len(records) == 0,
		})
		if len(f.message) >= messageSize {
			k.flush(f)
		}
	}
}

func (k *Keeper) flushAll() {
	k.mu.Lock()
	all := make([]*follower, 0, len(k.followers))
	for _, f := range k.followers {
		all = append(all, f)
	}
	k.mu.Unlock()
	for _, f := range all {
		if len(f.message) > 0 {
			k.flush(f)
		}
	}
}

// flush sends the message for f.
func (k *Keeper) flush(f *follower) {
	size, sections := len(f.message), f.sections
	routine := k.view.Load().Settled && !slices.ContainsFunc(sections, func(one sentSection) bool { return one.copy })
	k.mu.Lock()
	number := f.messageSent()
	k.stats.PushedBytes += int64(size)
	k.mu.Unlock()
	k.cfg.Calls.Go(f.node, MethodPush, f.message, pushTimeout, func(reply []byte, err error) {
		var refused map[int]bool
		if err == nil {
			refused, err = parsePartitions(reply)
		}
		k.mu.Lock()
		f.messageAnswered(number, size, sections, refused, err)
		accepted := err == nil && len(refused) == 0
		if !accepted {
			k.backOff(f.node)
		}
		k.mu.Unlock()
		// While nothing moves, an acknowledgement of changes concerns only confirmations.
		k.wakeConfirms()
		if !routine || !accepted {
			k.wake()
		}
	})
	f.message, f.sections = f.message[:0], nil
}

// isAnswer reports whether err, the result of a call, is an answer of the follower. One that can't accept the message,
// because it has not applied the agreed state yet, still answers.
func isAnswer(err error) bool {
	var remote *peer.RemoteError
	return err == nil || errors.As(err, &remote) && (remote.Code == codeBehind || remote.Code == codeRefused)
}

// probe sends an empty message to each follower that has got no message for probeInterval. It runs in the loop.
func (k *Keeper) probe() {
	k.mu.Lock()
	var list []*follower
	for _, f := range k.followers {
		if len(f.inFlight) == 0 && time.Since(f.lastSent) >= probeInterval && k.canSendTo(f.node) {
			list = append(list, f)
		}
	}
	k.mu.Unlock()
	for _, f := range list {
		f.message = k.nextHeader(f.message)
		k.flush(f)
	}
}

// Lagging lists this node's followers that can be reached but have not answered for lagTime. If more than half of the
// reachable followers lag, the fault is likely here, and the list is empty.
func (k *Keeper) Lagging() []ring.NodeID {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []ring.NodeID
	reached := 0
	for node, f := range k.followers {
		if !k.cfg.Calls.Reachable(node) {
			continue
		}
		if reached++; !f.silentSince.IsZero() && time.Since(f.silentSince) >= lagTime {
			list = append(list, node)
		}
	}
	if k.stats.Lagging = len(list); 2*len(list) > reached {
		return nil
	}
	return list
}

// receive handles messages from other keepers, in order.
func (k *Keeper) receive() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case m := <-k.inbox:
			k.handleMessage(m.Call, m.arrived)
		}
	}
}

// Handle registers this Keeper with p for the messages of other keepers.
func (k *Keeper) Handle(p *peer.Peers) {
	for m := MethodPush; m <= MethodDebts; m++ {
		p.Handle(m, peer.Near, k.enqueue)
	}
}

// enqueue queues a message from another keeper. It does not block.
func (k *Keeper) enqueue(c *peer.Call) {
	c.CopyBody()
	select {
	case k.inbox <- message{c, time.Now()}:
	default:
		c.Fail(codeBusy, "too many messages are waiting")
	}
}
