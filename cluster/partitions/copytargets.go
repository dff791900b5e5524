package partitions

import (
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// copyTargets are the nodes that get copies of partitions whose tokens are
// here. Keeper.mu guards them, except for the messages being assembled.
type copyTargets struct {
	nodes map[ring.NodeID]*copyTarget
	// mayLackCopies is false if every copy target of every partition whose token is
	// here has a copy, or is getting one. Each event that may leave a copy target
	// without a copy sets mayLackCopies: a new state, a token that arrives, or a
	// copy that is forgotten.
	mayLackCopies bool
}

// copyTarget is what this node knows of one node that gets copies.
type copyTarget struct {
	node     ring.NodeID
	progress [ring.Partitions]*copyProgress // nil if no copy was begun
	unacked  int                            // bytes
	// lastNumber is the number of the last message; inFlight are the numbers of
	// unacknowledged messages, in order.
	lastNumber uint64
	inFlight   []uint64
	// lastSent is when the last message was sent. silentSince is since when the
	// target has owed an answer: since its last answer or, if it owed none then,
	// since the next message. It is zero while no message is unanswered.
	lastSent, silentSince time.Time

	// message is being assembled; Keeper.sendMu guards it.
	message  []byte
	sections []sentSection // the sections in it
}

// copyProgress is the state of a copy target's copy of one partition.
type copyProgress struct {
	copied   bool // it has acknowledged the complete copy
	inFlight int  // unacknowledged messages about the partition
}

// sentSection is a section of a message to a copy target.
type sentSection struct {
	p        int
	copy     bool          // part of a complete copy
	ends     bool          // completes a complete copy
	progress *copyProgress // the progress it counts toward; nil if the copy target needs a new copy
}

// targetOf returns node's copyTarget, which it creates if needed.
func (ts *copyTargets) targetOf(node ring.NodeID) *copyTarget {
	if ts.nodes[node] == nil {
		ts.nodes[node] = &copyTarget{node: node}
	}
	return ts.nodes[node]
}

// progressOf returns node's progress with p; nil if no copy was begun.
func (ts *copyTargets) progressOf(p int, node ring.NodeID) *copyProgress {
	if t := ts.nodes[node]; t != nil {
		return t.progress[p]
	}
	return nil
}

// hasCopy reports whether node has a complete copy of p; true if node is zero.
func (ts *copyTargets) hasCopy(p int, node ring.NodeID) bool {
	progress := ts.progressOf(p, node)
	return node.IsZero() || progress != nil && progress.copied
}

// forgetCopies forgets the copy targets' copies of p, so they get new ones.
func (ts *copyTargets) forgetCopies(p int) {
	for _, t := range ts.nodes {
		ts.forgetCopy(t, p)
	}
}

// forgetCopy forgets t's copy of p, so it gets a new one.
func (ts *copyTargets) forgetCopy(t *copyTarget, p int) {
	t.progress[p] = nil
	ts.mayLackCopies = true
}

// update brings the copy targets of self in line with a new state. It forgets a
// node's progress with partitions of which the node is no longer a copy target:
// if the node becomes one again later, its copies will be out of date. It also
// forgets nodes that restarted or were ended, because they have lost their
// copies.
func (ts *copyTargets) update(state, before *adoptedState, self ring.NodeID) {
	ts.mayLackCopies = true

	var buf [3]ring.NodeID
	current := map[ring.NodeID]bool{}
	for p := range ring.Partitions {
		from, to := state.Owners(p)
		if from != self && to != self {
			continue
		}
		for _, node := range state.copyTargetsOf(self, p, buf[:0]) {
			current[node] = true
		}
	}

	for node, t := range ts.nodes {
		for p := range t.progress {
			if t.progress[p] != nil && !slices.Contains(state.copyTargetsOf(self, p, buf[:0]), node) {
				t.progress[p] = nil
			}
		}

		isOther := state.Boot(node) != before.Boot(node) || state.Generation(node) != before.Generation(node)
		if !current[node] || isOther {
			delete(ts.nodes, node)
		}
	}
}

// messageSent records that t's message is being sent, and returns its number.
func (t *copyTarget) messageSent() uint64 {
	for i := range t.sections {
		section := &t.sections[i]
		section.progress = t.progress[section.p]
		if section.progress != nil {
			section.progress.inFlight++
		}
	}

	t.unacked += len(t.message)
	t.lastSent = time.Now()
	if t.silentSince.IsZero() {
		t.silentSince = t.lastSent
	}

	t.lastNumber++
	t.inFlight = append(t.inFlight, t.lastNumber)
	return t.lastNumber
}

// handleMessageReply records t's answer to a message. t gets a new copy of each
// partition that it declined.
func (ts *copyTargets) handleMessageReply(
	t *copyTarget, number uint64, size int, sections []sentSection, refused map[int]bool, err error,
) {
	t.unacked -= size
	t.inFlight = slices.DeleteFunc(t.inFlight, func(n uint64) bool { return n == number })
	if isAnswer(err) {
		t.silentSince = time.Time{}
		if len(t.inFlight) > 0 {
			t.silentSince = time.Now()
		}
	}

	for _, section := range sections {
		if section.progress == nil {
			continue
		}

		section.progress.inFlight--

		switch {
		case t.progress[section.p] != section.progress:
			// The copy was begun anew meanwhile. An answer about an earlier copy says
			// nothing about this one.
		case err != nil || refused[section.p]:
			// Without an answer, the changes may be missing there, and later ones
			// would leave a gap.
			ts.forgetCopy(t, section.p)
		case section.ends:
			section.progress.copied = true
		}
	}
}

// isAnswer reports whether err, the result of a call, shows that the copy
// target has answered. A target that refuses the message, for example because
// it has not applied the agreed state yet, has answered, too.
func isAnswer(err error) bool {
	remote, ok := errors.AsType[*peer.RemoteError](err)
	return err == nil || ok && (remote.Code == codeBehind || remote.Code == codeRefused)
}

// answerPatience is how long a copy target may leave messages unanswered before
// it counts as unresponsive.
const answerPatience = 5 * time.Second

// Unresponsive lists this node's copy targets that can be reached but have not
// answered for answerPatience. If more than half of the reachable copy targets
// are, the fault is likely here, and the list is empty.
func (k *Keeper) Unresponsive() []ring.NodeID {
	k.mu.Lock()
	defer k.mu.Unlock()

	list, reached := k.findUnresponsive()
	if 2*len(list) > reached {
		return nil
	}
	return list
}

// findUnresponsive lists the copy targets that can be reached but have not answered
// for answerPatience, and counts those that can be reached. The caller must hold mu.
func (k *Keeper) findUnresponsive() (list []ring.NodeID, reached int) {
	for node, t := range k.targets.nodes {
		if !k.config.Calls.Reachable(node) {
			continue
		}

		reached++
		if !t.silentSince.IsZero() && time.Since(t.silentSince) >= answerPatience {
			list = append(list, node)
		}
	}
	return list, reached
}
