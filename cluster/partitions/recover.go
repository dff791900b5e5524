package partitions

import (
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// copyInfoTimeout bounds how long a node may take to answer how new its copies are.
	copyInfoTimeout = 2 * time.Second
	// pullTimeout bounds how long a node may take to send its copies.
	pullTimeout = 30 * time.Second
	// slowPatience multiplies Config.Patience while a reachable node is worth
	// waiting for: this node lacks a complete copy, or that node is known to have
	// one.
	slowPatience = 5
)

// continueSearches searches for the newest copies of partitions whose tokens
// are here: it asks the holders how new theirs are, then fetches the newest.
// Once every holder has answered or timed out, this node continues from what it
// has. continueSearches reports whether any search goes on. The caller must
// hold sendMu.
func (k *Keeper) continueSearches() (searching bool) {
	state := k.adopted.Load()
	requests := map[callKey]copyRequest{}
	fromCheckpoint, fromLocalCopy := 0, 0
	ended := k.endedNodes(state)
	k.mu.Lock()

	for p := 0; k.inPhase[recovering] > 0 && p < ring.Partitions; p++ {
		pt := &k.parts[p]
		if pt.phase != recovering {
			continue
		}
		if !k.advanceSearch(state, p, ended, requests) {
			searching = true
			continue
		}

		timedOut, answered := pt.search.outcome()
		switch {
		case timedOut && pt.copyComplete:
			fromLocalCopy++
		case timedOut && !answered:
			fromCheckpoint++
		}

		k.concludeSearch(state, p)
	}

	// The calls are marked before they are made, because receiveCopy takes only
	// copies that were asked for.
	for call := range requests {
		k.callsInFlight[call] = true
	}
	k.mu.Unlock()

	k.logContinuations(fromCheckpoint, fromLocalCopy)
	for call, req := range requests {
		k.requestCopies(state, call, req)
	}
	return searching
}

// copyRequest is what one call asks for: copies of partitions, each for the
// search that went on when the call was made. An answer is of no use to a later
// search: the copies that it speaks of came, if at all, before that began.
type copyRequest struct {
	partitions []int
	searches   []*search // by index in partitions
}

// eachCurrent calls do for each partition whose search still goes on. The caller
// must hold mu.
func (req *copyRequest) eachCurrent(k *Keeper, do func(p int, s *search)) {
	for i, p := range req.partitions {
		if s := k.parts[p].search; s != nil && s == req.searches[i] {
			do(p, s)
		}
	}
}

// concludeSearch continues p from the counters that are here. The caller must
// hold mu.
func (k *Keeper) concludeSearch(state *adoptedState, p int) {
	// Without a whole copy, slots granted since the checkpoint may be missing.
	pt := &k.parts[p]
	isWhole := pt.copyComplete || pt.search.gotWhole
	if !isWhole && state.mayHaveLost(k.config.Self, p) {
		k.config.Table.MarkSlotsLost(k.config.Now(), p)
	}

	k.beginLineage(p)
}

// logContinuations logs how many partitions this node continues although it gave
// up waiting for another node.
func (k *Keeper) logContinuations(fromCheckpoint, fromLocalCopy int) {
	if fromCheckpoint > 0 {
		k.config.Logger.Warn("partitions continue from the last checkpoint: no standby returned a copy",
			"partitions", fromCheckpoint)
	}

	if fromLocalCopy > 0 {
		k.config.Logger.Warn("partitions continue from the local copy: a node that may have a newer one did not answer",
			"partitions", fromLocalCopy)
	}
}

// advanceSearch reports whether the search for p is over. If not, it adds p to
// the requests to send now. The caller must hold mu.
func (k *Keeper) advanceSearch(state *adoptedState, p int, ended []ring.NodeID, requests map[callKey]copyRequest) bool {
	pt := &k.parts[p]
	s := pt.search
	var buf [8]ring.NodeID
	nodes := append(state.copyHolders(k.config.Self, p, buf[:0]), ended...)
	request := func(node ring.NodeID, m peer.Method) {
		call := callKey{node, m}
		if !k.callsInFlight[call] && k.canSendTo(node) {
			req := requests[call]
			req.partitions = append(req.partitions, p)
			req.searches = append(req.searches, s)
			requests[call] = req
		}
	}

	waiting := false
	for _, node := range nodes {
		info, known := s.found[node]
		switch {
		case known && info.boot == state.Boot(node):
			// The node has answered. An answer of an earlier process is void, because
			// its memory is gone.
		case !k.shouldWaitFor(pt, node):
			s.giveUpOn(node, state.Boot(node))
		default:
			request(node, MethodCopyInfo)
			waiting = true
		}
	}

	// Nothing is fetched before every node has answered or timed out: a copy
	// fetched earlier might turn out to be the older one.
	if waiting {
		return false
	}

	for {
		node := s.nextToFetch(state, pt, nodes)
		if node.IsZero() {
			return true
		}
		if k.shouldWaitFor(pt, node) {
			request(node, MethodPull)
			return false
		}
		s.giveUpOn(node, state.Boot(node))
	}
}

// giveUpOn records that the search no longer waits for node's process boot.
func (s *search) giveUpOn(node ring.NodeID, boot uint64) {
	s.found[node] = copyInfo{boot: boot, done: true, timedOut: true}
}

// shouldWaitFor reports whether to wait longer for node. The caller must hold mu.
func (k *Keeper) shouldWaitFor(pt *partState, node ring.NodeID) bool {
	waited := time.Since(pt.search.since)

	// With a complete copy here, and none known there, wait only Patience.
	if !k.config.Calls.Reachable(node) || pt.copyComplete && !pt.search.found[node].whole {
		return waited < k.config.Patience
	}

	// A copy that is arriving is worth the wait, which pullTimeout bounds.
	return k.callsInFlight[callKey{node, MethodPull}] || waited < slowPatience*k.config.Patience
}

// nextToFetch returns the node to fetch a copy from next, or zero if there is
// none. First come the whole copies, the newest of each lineage. Then come the
// incomplete ones, such as those from a checkpoint.
//
// A whole copy is skipped if the copy here is whole, of the same lineage, and as
// new or newer. So is an outdated one of an ended node. Incomplete copies are
// skipped if a whole one is here, or has come from a node that was not ended.
func (s *search) nextToFetch(state *adoptedState, pt *partState, nodes []ring.NodeID) ring.NodeID {
	for i, node := range nodes {
		info := s.found[node]
		isNotNewer := pt.copyComplete && info.lineage == pt.lineage && !info.after(pt.version)
		if info.done || !info.whole || isNotNewer {
			continue
		}

		wasEnded := !state.InRing(node)
		if wasEnded && s.isOutdated(info.version, pt) {
			continue
		}
		if !s.isSuperseded(nodes, i) {
			return node
		}
	}

	if pt.copyComplete || s.gotWhole {
		return ring.NodeID{}
	}

	for _, node := range nodes {
		info := s.found[node]
		if !info.done && !info.whole {
			return node
		}
	}

	return ring.NodeID{}
}

// isSuperseded reports whether the copy of the i-th of nodes need not be fetched,
// because there is a newer one. Of equal copies, the first hides the others. A
// copy hides no other once this node has given up waiting for it.
func (s *search) isSuperseded(nodes []ring.NodeID, i int) bool {
	info := s.found[nodes[i]]
	for j, other := range nodes {
		better := s.found[other]
		if !better.whole || better.timedOut {
			continue
		}
		isFirstEqual := better.version == info.version && j < i
		if better.after(info.version) || isFirstEqual {
			return true
		}
	}
	return false
}

// isOutdated reports whether there is a whole copy of a later lineage than v,
// the version of an ended node's copy. Another node has owned the partition
// since then. Whatever the older copy has was taken into account when the later
// lineage began, and much of it may have been given back or reset since.
func (s *search) isOutdated(v version, pt *partState) bool {
	if pt.copyComplete && pt.beganAt() > v.beganAt() {
		return true
	}
	for _, info := range s.found {
		if info.whole && !info.timedOut && info.beganAt() > v.beganAt() {
			return true
		}
	}
	return false
}

// outcome reports whether this node gave up waiting for some node, and whether
// some node has answered: it sent its copy, or has none.
func (s *search) outcome() (timedOut, answered bool) {
	for _, info := range s.found {
		timedOut = timedOut || info.timedOut
		answered = answered || info.done && !info.timedOut
	}
	return timedOut, answered
}

// requestCopies asks a node how new its copies are, or asks for the copies,
// which arrive before the answer.
func (k *Keeper) requestCopies(state *adoptedState, call callKey, req copyRequest) {
	timeout := copyInfoTimeout
	if call.method == MethodPull {
		timeout = pullTimeout
	}
	// boot is the process at the time of the question: if the node has another
	// one when it answers, it is asked again.
	boot := state.Boot(call.node)

	// A node that is not in the ring was ended, and may not know it: the message
	// says so.
	body := wire.AppendBool(k.appendHeader(nil, 0), !state.InRing(call.node))
	k.config.Calls.Go(call.node, call.method, appendPartitions(body, req.partitions), timeout, func(reply []byte, err error) {
		if call.method == MethodPull {
			k.handlePullReply(call.node, req, err)
			return
		}

		var found map[int]copyInfo
		if err == nil {
			found, err = parseCopyInfos(reply)
		}
		k.handleCopyInfo(call.node, boot, req, found, err)
	})
}

// handleCopyInfo handles the answer to the question how new node's copies are:
// the findings found. boot is the process that was asked.
func (k *Keeper) handleCopyInfo(node ring.NodeID, boot uint64, req copyRequest, found map[int]copyInfo, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if !k.finishCall(callKey{node, MethodCopyInfo}, err) {
		return
	}

	req.eachCurrent(k, func(p int, s *search) {
		info, hasCopy := found[p]
		info.boot = boot
		info.done = !hasCopy
		s.found[node] = info
	})
}

// handlePullReply handles the answer to the request for node's copies, which has
// come after the copies.
func (k *Keeper) handlePullReply(node ring.NodeID, req copyRequest, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	delete(k.incoming, node) // if a copy is incomplete, the rest will not come any more
	if !k.finishCall(callKey{node, MethodPull}, err) {
		return
	}

	req.eachCurrent(k, func(_ int, s *search) {
		info := s.found[node]
		info.done = true
		s.found[node] = info
	})

	k.config.Logger.Debug("a node has sent its copies", "node", node.String(), "partitions", len(req.partitions))
}

// finishCall ends a call to a node about its copies, and reports whether the answer
// counts. The caller must hold mu.
func (k *Keeper) finishCall(call callKey, err error) bool {
	delete(k.callsInFlight, call)
	if k.isStopped() {
		return false
	}

	k.wake() // the loop goes on once mu is free
	if err != nil {
		k.backOff(call.node)
		k.config.Logger.Debug("asking a node about its copies failed", "node", call.node.String(), "error", err)
	}
	return err == nil
}
